#!/bin/sh
# Fetches the modules of pages/vendor from the npm registry, by pinned version and checksum.
#
# The only changes are those of `sed` below: bare names of modules become paths, because a page without an inline import
# map cannot resolve them, and references to source maps are dropped.
set -eu
cd "$(dirname "$0")"
target=$PWD/pages/vendor
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$target"

fetch() { # package version file-in-package name
    archive=$(cd "$work" && npm pack --silent "$1@$2")
    (cd "$work" && grep "  $archive\$" "$OLDPWD/vendor.sha512" | sha512sum --check --quiet -)
    mkdir -p "$work/$4" && tar -xzf "$work/$archive" -C "$work/$4"
    sed -e 's|"preact/hooks"|"./hooks.js"|g' -e 's|"preact"|"./preact.js"|g' \
        -e 's|"@preact/signals-core"|"./signals-core.js"|g' -e 's|//# sourceMappingURL=.*||' \
        "$work/$4/package/$3" > "$target/$4.js"
    cp "$work/$4/package/LICENSE" "$target/LICENSE.$4"
}

fetch preact 11.2.0 dist/preact.mjs preact
fetch preact 11.2.0 hooks/dist/hooks.mjs hooks
fetch htm 3.1.1 dist/htm.module.js htm
fetch @preact/signals-core 1.14.5 dist/signals-core.mjs signals-core
fetch @preact/signals 2.11.4 dist/signals.mjs signals
rm "$target/LICENSE.hooks" # preact's
(cd "$target" && sha256sum ./*.js | sed 's|\./||' > SHA256SUMS)
