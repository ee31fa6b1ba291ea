#!/bin/sh
# The tests, the notebooks and the cache benchmark on an NVIDIA card: scripts/gpu.sh [FOLDER]
#
# Uses .venv where it sees the card, else PYTHON or python3, with the packages that are there: nothing is
# installed and no network is needed. Results go to FOLDER/<card>/ (default: results/). Exit code: 0 all passed,
# 1 something failed, 2 no card or no package to run with.
cd "$(dirname "$0")/.." || exit 2
results=${1:-results}
export KVCOURSE_DEVICE=cuda

card_of() {
    "$1" -c 'import torch; print(torch.cuda.get_device_name(0))' 2>/dev/null
}
python=${PYTHON:-.venv/bin/python}
card=$(card_of "$python")
if [ -z "$card" ] && [ -z "${PYTHON:-}" ]; then
    python=python3
    card=$(card_of "$python")
fi
if [ -z "$card" ]; then
    echo "kvcourse: PyTorch sees no CUDA card here ($python): run this where it does, or name its Python with PYTHON=" >&2
    exit 2
fi

has() {
    "$python" -c "import importlib.util as u, sys; sys.exit(not all(u.find_spec(n) for n in sys.argv[1:]))" "$@"
}
for name in filelock hypothesis numba platformdirs pytest rich safetensors tokenizers tqdm transformers; do
    has "$name" || { echo "kvcourse: $python has no package $name: install it there" >&2; exit 2; }
done

# kernels/ is a part of the package only after an install; without one, a link stands in for it while this runs.
if ! "$python" -c 'import kvcourse.kernels' 2>/dev/null; then
    [ -e kvcourse/kernels ] || ln -s ../kernels kvcourse/kernels || exit 2
    trap 'rm -f kvcourse/kernels' EXIT
    trap 'exit 130' INT TERM
fi
"$python" -c 'import kvcourse.kernels' || exit 2

folder=$results/$(printf '%s' "$card" | tr '[:upper:]' '[:lower:]' | tr -cs '[:alnum:]' '-' | sed 's/-*$//')
mkdir -p "$folder" || exit 2
echo "card: $card; results: $folder"
status=0

run() {
    name=$1
    shift
    echo "== $name"
    "$python" "$@" >"$folder/$name.txt" 2>&1
    code=$?
    tail -n 15 "$folder/$name.txt"
    [ "$code" -eq 0 ] || status=1
}

# What tests the set-up, the book and the README is the same on every machine.
run tests -m pytest -q tests --ignore=tests/course --ignore=tests/notebooks --ignore=tests/figures \
    --ignore=tests/test_setup.py --ignore=tests/test_readme.py --ignore=tests/test_structure.py
if has nbval ipykernel anywidget matplotlib; then
    run notebooks -m pytest -q -p tests.notebooks.plugin --nbval --nbval-current-env --nbval-cell-timeout 120 \
        --nbval-sanitize-with tests/notebooks/sanitize.cfg notebooks
else
    echo "== notebooks: left out, needs the packages nbval, ipykernel, anywidget and matplotlib"
fi
run bench_cache -c 'import sys; from kvcourse.cli import main; sys.exit(main())' \
    bench cache --device cuda --dtype bfloat16 --json "$folder/bench_cache.json"
exit "$status"
