# Runs a command as the container of the chart does: in a root with nothing but the binary, which is read-only, as its user, with
# writable /data and /tmp. Runs as root in a mount namespace of its own: container.sh ROOT NAME=VALUE... COMMAND ARGUMENT...
set -eu
root=$1
shift
mount --bind "$root" "$root"
for volume in data tmp; do mount --bind "$root/$volume" "$root/$volume"; done
mount -o remount,bind,ro "$root"
variables=
while [ "${1#*=}" != "$1" ]; do
  variables="$variables $1"
  shift
done
# shellcheck disable=SC2086 # Each variable is a word.
exec env -i $variables "$(command -v chroot)" --userspec=65532:65532 "$root" "$@"
