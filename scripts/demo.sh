#!/usr/bin/env bash
# Builds the binaries and runs the demo; see scripts/demo.py and docs/demo.md.
set -euo pipefail
cd "$(dirname "$0")/.."
${CARGO:-cargo} build --locked --bins
exec python3 -B scripts/demo.py "$@"
