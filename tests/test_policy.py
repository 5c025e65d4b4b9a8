"""Policy directories: complete and verified, or refused by the name of what is wrong."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path

import pytest
import torch
from tokenizers import normalizers

from posttrain.errors import FingerprintError, InfrastructureError, PolicyError
from posttrain.fingerprint import Fingerprint, check_served, choose_probe_ids, must_move, tolerances
from posttrain.policy import end_ids, import_policy, load_model, load_tokenizer, policy_hash, read_policy, write_policy
from tests.tiny_models import EOS_ID, SPECIAL_TOKENS, build_tiny_model, build_tiny_policy, build_tiny_tokenizer


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny_policy(tmp_path_factory.mktemp("policy") / "policy", seed=1)


@pytest.fixture
def policy(written: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(written, tmp_path / "policy"))


def test_a_policy_comes_back_as_it_was_written(policy: Path) -> None:
    manifest = read_policy(policy)
    assert (manifest.version, manifest.parent, manifest.algorithm, manifest.iteration) == (0, None, "random", 0)
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= manifest.files.keys()
    original, loaded = build_tiny_model(1).state_dict(), load_model(policy, "float32").state_dict()
    assert all(torch.equal(original[name], loaded[name]) for name in original)
    assert load_model(policy, "bfloat16").dtype == torch.bfloat16
    assert load_tokenizer(policy)("ab")["input_ids"] == build_tiny_tokenizer()("ab")["input_ids"]
    assert end_ids(policy, load_tokenizer(policy)) == {EOS_ID}


def test_the_fingerprint_is_the_log_softmax_of_the_probe(policy: Path) -> None:
    fingerprint = read_policy(policy).fingerprint
    assert len(fingerprint.probe_ids) == 34 and not set(fingerprint.probe_ids) & set(range(len(SPECIAL_TOKENS)))
    with torch.no_grad():
        logits = build_tiny_model(1)(torch.tensor([fingerprint.probe_ids])).logits[0].double()
    for position, token in enumerate(fingerprint.probe_ids[1:]):
        expected = logits[position, token] - torch.logsumexp(logits[position], 0)
        assert fingerprint.logprobs[position] == pytest.approx(expected.item(), abs=1e-5)


def test_the_probe_is_fixed_and_fits_a_short_context() -> None:
    assert choose_probe_ids(65, [0, 1, 2, 3]) == choose_probe_ids(65, [3, 2, 1, 0])
    assert len(choose_probe_ids(65, [0], context_tokens=8)) == 8
    with pytest.raises(PolicyError, match="nothing but special tokens"):
        choose_probe_ids(2, [0, 1])


def test_the_hash_names_weights_and_ancestry(policy: Path, tmp_path: Path) -> None:
    again = build_tiny_policy(tmp_path / "again", seed=1)
    assert policy_hash(again) == policy_hash(policy) == read_policy(policy).hash
    assert policy_hash(build_tiny_policy(tmp_path / "other", seed=2)) != policy_hash(policy)
    parent = policy_hash(policy)
    child = write_policy(
        build_tiny_model(1), build_tiny_tokenizer(), tmp_path / "child", version=1, parent=parent, algorithm="grpo", iteration=1
    )
    assert child.parent == parent and child.hash != policy_hash(policy)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_an_altered_file_is_refused_by_name(policy: Path, name: str) -> None:
    content = bytearray((policy / name).read_bytes())
    content[-2] ^= 1
    (policy / name).write_bytes(content)
    with pytest.raises(PolicyError, match=f"'{name}' was altered"):
        load_model(policy, "float32")


def test_missing_and_unexpected_files_are_refused_by_name(policy: Path) -> None:
    (policy / "extra.py").write_text("print()")
    with pytest.raises(PolicyError, match=r"'extra.py' is not in the manifest"):
        read_policy(policy)
    (policy / "extra.py").unlink()
    (policy / "generation_config.json").unlink()
    with pytest.raises(PolicyError, match=r"'generation_config.json' of the manifest is missing"):
        read_policy(policy)


def test_half_written_and_malformed_directories_are_refused(policy: Path, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no such policy directory"):
        read_policy(tmp_path / "nowhere")
    (policy / "policy.json").write_text('{"version": 0}')
    with pytest.raises(PolicyError, match=r"policy.json: not a policy manifest"):
        policy_hash(policy)
    (policy / "policy.json").unlink()
    with pytest.raises(PolicyError, match=r"no policy.json: half-written"):
        read_policy(policy)
    (policy / "model.safetensors").unlink()
    with pytest.raises(PolicyError, match=r"no .safetensors file"):
        read_policy(policy)


def test_pickled_weights_are_refused_by_name_and_never_opened(policy: Path, tmp_path: Path) -> None:
    (policy / "policy.json").unlink()
    (policy / "model.safetensors").unlink()
    (policy / "pytorch_model.bin").write_bytes(b"not even a pickle")
    for refused in (lambda: read_policy(policy), lambda: import_policy(policy, tmp_path / "imported")):
        with pytest.raises(PolicyError, match=r"pickle files \(pytorch_model.bin\).*Convert them to safetensors"):
            refused()
    assert not (tmp_path / "imported").exists()


def test_a_model_without_tokenizer_is_refused(policy: Path, tmp_path: Path) -> None:
    (policy / "tokenizer.json").unlink()
    (policy / "policy.json").unlink()
    with pytest.raises(PolicyError, match=r"no tokenizer \(tokenizer.json"):
        import_policy(policy, tmp_path / "imported")


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path) -> None:
    tokenizer = build_tiny_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    with pytest.raises(PolicyError, match="the tokenizer has 66 ids, the model 65"):
        write_policy(build_tiny_model(), tokenizer, tmp_path / "policy", version=0, parent=None, algorithm="random", iteration=0)


def test_weights_with_nan_leave_no_directory(tmp_path: Path) -> None:
    model = build_tiny_model()
    model.model.norm.weight.data[0] = float("nan")
    with pytest.raises(PolicyError, match="NaN or infinity"):
        write_policy(model, build_tiny_tokenizer(), tmp_path / "policy", version=0, parent=None, algorithm="random", iteration=0)
    assert list(tmp_path.iterdir()) == []


def test_a_local_model_is_imported_as_version_0(policy: Path, tmp_path: Path) -> None:
    (policy / "policy.json").unlink()
    manifest = import_policy(policy, tmp_path / "imported")
    assert (manifest.version, manifest.parent, manifest.algorithm) == (0, None, "import")
    assert read_policy(tmp_path / "imported") == manifest
    assert manifest.fingerprint.logprobs == pytest.approx(_manifest_logprobs(build_tiny_policy(tmp_path / "same", seed=1)))


def test_what_cannot_be_imported_says_why(policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PolicyError, match="no such model directory"):
        import_policy(tmp_path / "nowhere", tmp_path / "imported")
    (policy / "policy.json").unlink()
    (policy / "config.json").write_text(json.dumps({"model_type": "qwen3", "hidden_size": 32}))
    with pytest.raises(PolicyError, match="the model cannot be loaded"):
        import_policy(policy, tmp_path / "imported")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(PolicyError, match="'nobody/no-such-model': not in the local cache, and the hub cannot be reached"):
        import_policy("nobody/no-such-model", tmp_path / "imported")
    assert not (tmp_path / "imported").exists()


def test_served_logprobs_are_judged_by_the_dtype() -> None:
    fingerprint = Fingerprint((5, 6, 7), (-1.0, -2.0), (-1.03, -2.01))  # bfloat16 may be off by 0.1, by 0.04 in the mean
    assert check_served([-1.0004, -2.0], fingerprint, "float32", "engine", "dir") == pytest.approx(4e-4)
    assert check_served([-1.05, -2.02], fingerprint, "bfloat16", "engine", "dir") == pytest.approx(0.05)
    refused = [
        ([-1.002, -2.0], "float32", "largest"),
        ([-1.101, -2.0], "bfloat16", "largest"),
        ([-1.05, -2.04], "bfloat16", "mean"),
        ([float("nan"), -2.0], "float32", "inf"),
        ([], "float32", "0 probe logprobs"),
        ([-1.0] * 3, "float32", "3 probe logprobs"),
    ]
    for served, dtype, why in refused:
        with pytest.raises(FingerprintError, match=why):
            check_served(served, fingerprint, dtype, "engine", "dir")


def test_a_noisy_policy_widens_its_own_bfloat16_tolerance() -> None:
    noisy = Fingerprint((5, 6, 7), (-1.0, -2.0), (-1.9, -2.1))
    assert tolerances(noisy, "bfloat16") == pytest.approx({"largest": 1.8, "mean": 1.0})
    assert check_served([-2.0, -2.5], noisy, "bfloat16", "engine", "dir") == pytest.approx(1.0)
    with pytest.raises(FingerprintError):
        check_served([-2.0, -2.5], noisy, "float32", "engine", "dir")


def test_policies_that_differ_must_move_the_probe() -> None:
    old = Fingerprint((5, 6), (-1.0,), (-1.5,))
    assert must_move(old, Fingerprint((5, 6), (-1.0002,), (-1.5,)))
    assert not must_move(old, Fingerprint((5, 6), (-1.00001,), (-1.5,)))
    assert not must_move(old, Fingerprint((5, 7), (-2.0,), (-2.5,)))  # another tokenizer: nothing to compare


def _manifest_logprobs(policy: Path) -> tuple[float, ...]:
    return read_policy(policy).fingerprint.logprobs


@pytest.mark.parametrize(
    ("field", "value"),
    [("files", None), ("files", []), ("files", {"config.json": 5}), ("fingerprint", None), ("version", "0"), ("parent", 3)],
)
def test_a_manifest_with_a_field_of_another_type_is_refused(policy: Path, field: str, value: object) -> None:
    path = policy / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(PolicyError, match="not a policy manifest"):
        read_policy(policy)


@pytest.mark.parametrize("limit_bytes", [256, 1024, 5000, 60_000], ids=["config", "tokenizer", "manifest-or-weights", "weights"])
def test_a_full_disk_leaves_the_previous_policy_and_no_rubbish(policy: Path, limit_bytes: int) -> None:
    before = policy_hash(policy)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        with pytest.raises(InfrastructureError, match="the policy cannot be written"):
            write_policy(build_tiny_model(2), build_tiny_tokenizer(), policy, version=1, parent=None, algorithm="x", iteration=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert read_policy(policy).hash == before
    assert [path.name for path in policy.parent.iterdir()] == ["policy"]


def test_a_full_disk_under_a_big_tokenizer_is_told_too(tmp_path: Path) -> None:
    """Its writer raises a bare Exception."""
    tokenizer = build_tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("long" * 500_000, "short")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_900_000, hard))
    try:
        with pytest.raises(InfrastructureError, match="the policy cannot be written") as caught:
            write_policy(build_tiny_model(), tokenizer, tmp_path / "policy", version=0, parent=None, algorithm="x", iteration=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert type(caught.value.__cause__) is Exception
    assert list(tmp_path.iterdir()) == []
