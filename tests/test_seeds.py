import hashlib

from posttrain.seeds import sample_seed


def test_a_seed_is_the_first_63_bits_of_the_documented_hash() -> None:
    digest = hashlib.sha256(b'[7, 3, "p-1", 0]').digest()
    assert sample_seed(7, 3, "p-1", 0) == int.from_bytes(digest[:8], "big") // 2


def test_seeds_differ_in_every_part_and_fit_a_signed_64_bit_integer() -> None:
    seeds = {
        sample_seed(run, iteration, prompt, sample)
        for run in range(3)
        for iteration in range(5)
        for prompt in ("1", "11", "é", "1, 1")
        for sample in range(16)
    }
    assert len(seeds) == 3 * 5 * 4 * 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_parts_do_not_run_into_each_other() -> None:
    assert sample_seed(1, 11, "p", 0) != sample_seed(11, 1, "p", 0)
    assert sample_seed(0, 0, "p1", 1) != sample_seed(0, 0, "p", 11)
