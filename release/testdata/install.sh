#!/bin/bash
# install.sh DIR PACKAGE VERSION: installs the package in a copy of this machine, looks at it, removes it, and looks at
# what stays. The copy is an overlay in a mount namespace of its own, in DIR, which must be empty: the machine keeps
# nothing.
set -euo pipefail
if [[ -z ${IN_NAMESPACE-} ]]; then
	IN_NAMESPACE=1 exec unshare --mount --propagation private "$0" "$@"
fi
dir=$1 package=$2 version=$3
fail() {
	echo "install.sh: $*" >&2
	exit 1
}

mount -t tmpfs -o size=2g tmpfs "$dir"
mkdir "$dir/upper" "$dir/work" "$dir/root"
mount -t overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" overlay "$dir/root"
mount --rbind /dev "$dir/root/dev"
mount -t proc proc "$dir/root/proc"
mount -t tmpfs tmpfs "$dir/root/run" # no systemd runs in the copy
mount -t tmpfs tmpfs "$dir/root/tmp"
cp "$package" "$dir/root/tmp/plimsoll.deb"
inside() { chroot "$dir/root" env PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }

# made prints what there is in the copy and not on the machine, apart from what dpkg and apt keep about packages.
made() {
	(cd "$dir/upper" && find . -mindepth 1 ! -type d -o -type d -empty) | sort |
		{ grep -Ev '^\./(var/(lib/(dpkg|apt)|cache/(apt|debconf|man|ldconfig)|log)|tmp|run)(/|$)' || true; } |
		while read -r path; do
			[[ -d $dir/upper/$path && -d /$path ]] || echo "$path" # a directory of the machine in which something was
		done
}
inside apt-get purge -qq -y plimsoll >/dev/null 2>&1 || true # of an installation on the machine itself
before=$(made)

apt() { inside apt-get -qq -y --no-install-recommends "$@" >"$dir/apt.log" 2>&1 || fail "$(cat "$dir/apt.log")"; }
apt install /tmp/plimsoll.deb
inside plimsoll version | grep -F -- "$version" || fail "plimsoll version: $(inside plimsoll version)"
[[ $(made) == *./usr/bin/plimsoll* ]] || fail "the program is not among what was made: $(made)"
status=$(inside dpkg --verify plimsoll) || true
[[ -z $status ]] || fail "dpkg --verify: $status"
mode=$(inside stat -c '%a %U %G' /etc/plimsoll)
[[ $mode == '700 root root' ]] || fail "/etc/plimsoll: $mode"
for unit in agent scheduler lifecycle; do
	wants=$dir/root/etc/systemd/system/multi-user.target.wants/plimsoll-$unit.service
	file=/usr/lib/systemd/system/plimsoll-$unit.service
	problems=$(inside systemd-analyze verify --man=no "$file" 2>&1) || fail "$file: $problems"
	[[ -z $problems ]] || fail "$file: $problems"
	[[ $(inside systemctl is-enabled "plimsoll-$unit.service") == disabled ]] || fail "plimsoll-$unit is enabled"
	inside systemctl enable "plimsoll-$unit.service" 2>/dev/null
	[[ -L $wants ]] || fail "$unit cannot be enabled"
done
inside bash -n /usr/share/bash-completion/completions/plimsoll
for page in plimsoll plimsoll-agent plimsoll-scheduler plimsoll-lifecycle plimsoll-whatif-place; do
	zcat "$dir/root/usr/share/man/man1/$page.1.gz" | grep -q '^\.TH ' || fail "no manual page $page"
done
echo secret >"$dir/root/etc/plimsoll/scheduler.conf"

# Again, as an upgrade does.
apt install --reinstall /tmp/plimsoll.deb
[[ -L $wants ]] || fail "an upgrade disables units"

# What users wrote stays; all else goes.
apt remove plimsoll
[[ $(made) == "$(printf '%s\n%s' "$before" ./etc/plimsoll/scheduler.conf | grep . | sort)" ]] ||
	fail "after its removal there are: $(made)"
rm "$dir/root/etc/plimsoll/scheduler.conf"
apt purge plimsoll
rmdir "$dir/root/etc/plimsoll" 2>/dev/null || true
[[ $(made) == "$before" ]] || fail "after its purge there are: $(made)"
echo installed and removed
