#!/bin/sh
# Downloads weft @VERSION@, verifies its checksum and installs the programs weft and weft-cni.
#
#   sh install.sh [--prefix DIR] [--from DIRECTORY|URL]
#
#   --prefix DIR      the programs are installed into DIR/bin (default: /usr/local)
#   --from PLACE      directory or address with the files of the release (default: @DOWNLOADS@)
#
# It changes nothing else: no plugin directory and no configuration of a container runtime.
set -eu
version=@VERSION@
from=@DOWNLOADS@
prefix=/usr/local

fail() { echo "install.sh: $*" >&2; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -gt 1 ] || fail "--prefix: a directory is missing"; prefix=$2; shift 2 ;;
    --from) [ $# -gt 1 ] || fail "--from: a directory or an address is missing"; from=$2; shift 2 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) fail "$1: unknown option; see install.sh --help" ;;
  esac
done

case $(uname -s)-$(uname -m) in
  Linux-x86_64) architecture=amd64 ;;
  Linux-aarch64) architecture=arm64 ;;
  *) fail "$(uname -s) on $(uname -m): weft is built for Linux on x86_64 and aarch64" ;;
esac
name=weft-$version-linux-$architecture

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# Copies or downloads a file of the release.
obtain() {
  case $from in
    http://*) fail "--from $from: use https" ;;
    https://*)
      if command -v curl >/dev/null; then
        curl --proto =https --fail --silent --show-error --location --output "$scratch/$1" "$from/$1"
      elif command -v wget >/dev/null; then
        wget --quiet --output-document="$scratch/$1" "$from/$1"
      else
        fail "neither curl nor wget is installed"
      fi || fail "$from/$1: the download failed"
      ;;
    *) cp -- "$from/$1" "$scratch/$1" || fail "$from/$1: the file cannot be copied" ;;
  esac
}

obtain SHA256SUMS
obtain "$name.tar.gz"
expected=$(awk -v file="$name.tar.gz" '$2 == file || $2 == "*" file { print $1 }' "$scratch/SHA256SUMS")
[ -n "$expected" ] || fail "SHA256SUMS has no checksum of $name.tar.gz"
found=$(sha256sum "$scratch/$name.tar.gz" | cut -d ' ' -f 1)
[ "$found" = "$expected" ] || fail "$name.tar.gz: the checksum is $found, not $expected; nothing was installed"

tar -xzf "$scratch/$name.tar.gz" -C "$scratch"
mkdir -p "$prefix/bin"
for program in weft weft-cni; do
  # A running program can only be replaced by a rename. mktemp creates the file: another user may have put a link at a known name.
  new=$(mktemp "$prefix/bin/.$program.XXXXXXXXXX") || fail "$prefix/bin: no file can be created"
  trap 'rm -rf "$scratch" "$new"' EXIT
  cp "$scratch/$name/$program" "$new"
  chmod 755 "$new"
  # -T: a directory of this name is an error, not a place to move into.
  mv -fT "$new" "$prefix/bin/$program"
done
"$prefix/bin/weft" version
