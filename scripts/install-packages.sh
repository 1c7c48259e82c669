#!/usr/bin/env bash
# Installs what scripts/packages.txt lists, on Debian 12 or Ubuntu 24.04. Asks nothing; does nothing when all is there.
# With --full also clang and its sanitizers' runtime, which the fuzz targets need, and a compiler and emulator for 64-bit Arm.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

mapfile -t packages < <(grep -v '^#' "$here/packages.txt")
if [ "${1:-}" = --full ]; then
  # `clang` is the distribution's default version, and the runtime's package is named after it.
  version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
  packages+=(clang "libclang-rt-${version:-14}-dev")
  [ "$(uname -m)" = aarch64 ] || packages+=(g++-aarch64-linux-gnu qemu-user-static googletest make)
fi
missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$status" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null; then
  echo "install-packages: there is no apt-get here; install these by hand: ${missing[*]}" >&2
  exit 1
fi
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(sudo)
install() {
  "${as_root[@]}" apt-get -qq update &&
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
}
echo "install-packages: installing ${missing[*]}" >&2
install || { echo "install-packages: trying once more" >&2; sleep 5; install; }
