# Installs a Debian package on a copy of this system that is gone afterwards: an overlay whose changes are in memory. Upgrades,
# removes and purges it as well. Runs as root in a mount namespace of its own: install.sh EMPTY-FOLDER PACKAGE
set -eu
folder=$1 package=$2
mount -t tmpfs tmpfs "$folder"
mkdir "$folder/upper" "$folder/work" "$folder/system"
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/upper,workdir=$folder/work" "$folder/system"
mount -t proc proc "$folder/system/proc"
cp "$package" "$folder/system/portolan.deb"
exec chroot "$folder/system" sh -eu -c '
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
dpkg --force-confold -i /portolan.deb
dpkg -s portolan | grep -q "^Status: install ok installed"
test "$(stat -c %U:%G:%a /var/lib/portolan)" = portolan:portolan:700
test "$(getent passwd portolan | cut -d: -f7)" = /usr/sbin/nologin
for name in portolan kubectl-portolan kubectl-ws kubectl-create-workspace; do "$name" --version; done
setpriv --reuid portolan --regid portolan --clear-groups portolan check --data-dir /var/lib/portolan
echo "an upgrade keeps the settings"
echo "PORTOLAN_FLAGS=\"--tls-san plane.example.com\"" > /etc/portolan/portolan.env
dpkg --force-confold -i /portolan.deb
grep -q plane.example.com /etc/portolan/portolan.env
echo "a removal keeps settings and data, a purge the data"
touch /var/lib/portolan/kept
dpkg --remove portolan
test ! -e /usr/bin/portolan && test ! -e /usr/bin/kubectl-ws && test -e /etc/portolan/portolan.env
dpkg --purge portolan
test ! -e /etc/portolan && test -e /var/lib/portolan/kept
echo installed, upgraded, removed and purged
'
