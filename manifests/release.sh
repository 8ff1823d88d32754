#!/usr/bin/env bash
# Makes the files of a release in target/release-files: the static binary, the Debian package, the charts, and their checksums.
# Needs the target x86_64-unknown-linux-musl, musl-gcc, cargo-deb, and Helm for the charts.
set -euo pipefail
cd "$(dirname "$0")/.."

target=x86_64-unknown-linux-musl
out=target/release-files
# Most bytes of the binary.
most=35000000
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

rm -rf "$out"
mkdir -p "$out"
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
cargo build --locked --profile dist --package portolan --target "$target"
install -m 755 "target/$target/dist/portolan" "$out/portolan-$version-linux-amd64"
size=$(stat -c %s "$out/portolan-$version-linux-amd64")
[ "$size" -le "$most" ] || { echo "the binary has $size bytes, more than $most" >&2; exit 1; }
# The binary needs no file beside it: it runs in an empty root.
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
install -m 755 "target/$target/dist/portolan" "$root/portolan"
unshare --map-root-user chroot "$root" /portolan --version
cargo deb --package portolan --no-build --no-strip --profile dist --target "$target" --output "$out/"
if command -v helm > /dev/null; then
  for chart in manifests/charts/*/; do helm package --version "$version" --app-version "$version" --destination "$out" "$chart"; done
else
  echo "helm is missing: the charts are not packaged" >&2
fi
(cd "$out" && sha256sum -- * > SHA256SUMS)
cat "$out/SHA256SUMS"
