#!/bin/sh
# Installs Debian packages that are missing. Each argument is PACKAGE:COMMAND or PACKAGE:/FILE; the second part tells
# whether the package is there.
set -eu
missing=
for item in "$@"; do
  package=${item%%:*} sign=${item#*:}
  PATH="$PATH:/usr/sbin:/sbin" command -v "$sign" >/dev/null 2>&1 || [ -e "$sign" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
as_root=
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing$missing"
$as_root apt-get update -q
# shellcheck disable=SC2086 # words are packages
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
