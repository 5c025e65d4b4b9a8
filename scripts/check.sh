#!/usr/bin/env bash
# Everything that must hold before a change lands, one line each; all of it runs, whatever fails.
set -u
cd "$(dirname "$0")/.."
bin=.venv/bin
failed=0

check() {
    local name=$1 started=$SECONDS output
    shift
    if output=$("$@" 2>&1 </dev/null); then
        printf 'ok    %-16s %3d s\n' "$name" $((SECONDS - started))
    else
        printf 'FAIL  %-16s %3d s: %s\n%s\n\n' "$name" $((SECONDS - started)) "$*" "$output"
        failed=1
    fi
}

register() {
    FLYTECTL_CONFIG=flyte.config "$bin/pyflyte" -c flyte.config register --dry-run --version check --copy none workflows
}

check "ruff check" "$bin/ruff" check --quiet .
check "ruff format" "$bin/ruff" format --quiet --diff .
check "import contracts" "$bin/lint-imports" --no-cache
check "pyright" "$bin/pyright"
check "registration" register
exit $failed
