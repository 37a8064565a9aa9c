#!/usr/bin/env bash
# Builds the binaries and runs a demo: `demo.sh demo` or `demo.sh demo_ha`, with its options; see docs/demo.md.
set -euo pipefail
cd "$(dirname "$0")/.."
${CARGO:-cargo} build --locked --bins
exec python3 -B "scripts/$1.py" "${@:2}"
