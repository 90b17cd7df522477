#!/bin/bash
# Fetches the parts of images that come from Debian into the directory $1. Those of the suite's images are the trees
# tools/ (programs that tests run, with every library that they need), nginx/, stress/ and coreutils/, and the program
# busybox, built from Debian's source package: tests read its shell. Other arguments name other parts to fetch instead:
# nftables, nginx, postgresql. What exists is not fetched again. Nothing is installed on this machine.
set -euo pipefail

out=$(realpath -m "$1")
shift
mkdir -p "$out"
lists=$out/apt
quiet=(-qq -o Dir::State="$lists" -o Dir::State::status=/dev/null -o Dir::Cache="$lists" -o Debug::NoLocking=1 -o APT::Sandbox::User=root)

# update NAME reads package lists into a separate directory: with "source", those of source packages, which are not
# enabled on most machines.
update() {
	mkdir -p "$lists/lists/partial" "$lists/archives/partial"
	sed 's/^Types:.*/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources >"$lists/debian.sources"
	apt-get "${quiet[@]}" -o Dir::Etc::sourcelist="$lists/debian.sources" -o Dir::Etc::sourceparts=/dev/null update
}

# tree NAME PACKAGE... unpacks packages and all their dependencies. No package counts as installed, so that none is left
# out.
tree() {
	local name=$1 deb
	shift
	[[ -e $out/$name && $(cat "$out/$name.packages" 2>/dev/null) == "$*" ]] && return
	[[ -e $lists/debian.sources ]] || update
	rm -rf "$lists"/archives/*.deb "$out/$name" "$out/$name.new"
	apt-get "${quiet[@]}" -o Dir::Etc::sourcelist="$lists/debian.sources" -o Dir::Etc::sourceparts=/dev/null \
		--no-install-recommends --download-only -y install "$@" >/dev/null
	for deb in "$lists"/archives/*.deb; do
		dpkg-deb --extract "$deb" "$out/$name.new"
	done
	rm -rf "$out/$name.new"/usr/share/{doc,man,info,locale,i18n,lintian,bug}
	mv "$out/$name.new" "$out/$name"
	echo "$*" >"$out/$name.packages"
}

busybox() {
	[[ -e $out/busybox ]] && return
	[[ -e $lists/debian.sources ]] || update
	local work
	work=$(mktemp -d)
	trap 'rm -rf "$work"' RETURN
	(cd "$work" && apt-get "${quiet[@]}" -o Dir::Etc::sourcelist="$lists/debian.sources" -o Dir::Etc::sourceparts=/dev/null \
		--download-only source busybox >/dev/null)
	dpkg-source --no-check --extract "$work"/busybox_*.dsc "$work/source" >/dev/null
	(
		cd "$work/source"
		make defconfig >/dev/null 2>&1
		# tc does not compile with the headers of new kernels. The last option undoes a patch of Debian's, by which the
		# shell drops environment variables such as data-1.
		sed -i 's/^# CONFIG_STATIC is not set$/CONFIG_STATIC=y/; s/^CONFIG_TC=y$/# CONFIG_TC is not set/
			s/^# CONFIG_FEATURE_DI_ENV_HACK is not set$/CONFIG_FEATURE_DI_ENV_HACK=y/' .config
		make -j"$(nproc)" >make.log 2>&1 || { tail -n 20 make.log >&2; exit 1; }
	)
	ln -s busybox "$work/source/sh"
	if ! env -i data-1=kept "$work/source/sh" -c env | grep -qx data-1=kept; then
		echo "debian.sh: the shell of busybox drops the environment variable data-1, which tests read" >&2
		exit 1
	fi
	mv "$work/source/busybox" "$out/busybox"
}

# postgresql is a tree without what compiles queries (LLVM is twice the rest) and what creates clusters of Debian's own
# kind (perl).
postgresql() {
	[[ -e $out/postgresql ]] && return
	tree postgresql.all postgresql-15 dash coreutils
	rm -rf "$out"/postgresql.all/usr/lib/postgresql/*/lib/{bitcode,llvmjit*} \
		"$out"/postgresql.all/usr/lib/x86_64-linux-gnu/{libLLVM*,libz3*,perl,perl-base,gconv} \
		"$out"/postgresql.all/usr/share/{perl,perl5,postgresql-common} "$out"/postgresql.all/usr/bin/perl*
	rm "$out/postgresql.all.packages"
	mv "$out/postgresql.all" "$out/postgresql"
}

for part in "${@:-suite}"; do
	case $part in
	suite)
		busybox
		tree tools bash bind9-dnsutils curl iperf iproute2 libc-bin netcat-openbsd util-linux
		tree nginx nginx-light
		tree stress stress
		tree coreutils coreutils
		;;
	nftables) tree nftables nftables ;;
	nginx) tree nginx nginx-light ;;
	postgresql) postgresql ;;
	*)
		echo "debian.sh: $part: want nftables, nginx or postgresql, or nothing for the parts of the suite's images" >&2
		exit 1
		;;
	esac
done
rm -rf "$lists"
