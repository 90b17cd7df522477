#!/bin/bash
# Installs the missing packages that Plimsoll needs to build and run, with apt-get, as root. Prints nothing if none is
# missing. The argument "test" adds what only tests use, "conformance" what upstream's e2e suite needs, "console" what
# the tests of the console need. A program that is found is not installed again, whatever package it came from.
set -euo pipefail

# program or file -> Debian package; the one place that names packages (internal/containerruntime has a test for that).
needs=(
	"gcc:gcc"                                                    # the pause program, and go test -race
	"make:make"
	"git:git"                                                    # the version stamp
	"/usr/include/stdlib.h:libc6-dev"                            # go test -race is built with cgo
	"containerd:containerd"
	"ctr:containerd"
	"containerd-shim-runc-v2:containerd"
	"runc:runc"
	"/usr/lib/cni/bridge|/opt/cni/bin/bridge|/usr/libexec/cni/bridge:containernetworking-plugins"
	"nft|iptables:nftables"                                      # kube-proxy
	"mkfs.ext4:e2fsprogs"                                        # volumes of plimsoll-csi, and disks of the lab's guests
)

if [[ ${1-} == test ]]; then
	needs+=(
		"crun:crun"                             # the runtime's tests run on both
		"iptables:iptables"                     # the agent makes chains with it
		"qemu-system-x86_64:qemu-system-x86"    # the lab's guests
		"/usr/include/seccomp.h:libseccomp-dev" # runc is built with it, to run with containerd 2
	)
fi

if [[ ${1-} == conformance ]]; then
	needs+=(
		"iptables:iptables"    # kube-proxy
		"dpkg-source:dpkg-dev" # busybox is built from Debian's source package
		"bzip2:bzip2"
	)
fi

if [[ ${1-} == console ]]; then
	needs+=("chromium:chromium") # the tests of `plimsoll console` look at it in a browser
fi

PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

there() { # there 'a|b' succeeds if one of the programs or files exists
	local each
	for each in ${1//|/ }; do
		case $each in
		/*) [[ -e $each ]] && return 0 ;;
		*) type -P "$each" >/dev/null && return 0 ;;
		esac
	done
	return 1
}

if ! there go; then
	echo "deps: go is not on PATH: install Go $(sed -n 's/^go //p' "$(dirname "$0")/../go.mod") or later, from https://go.dev/dl" >&2
	exit 1
fi

packages=()
for need in "${needs[@]}"; do
	package=${need##*:}
	if ! there "${need%:*}" && [[ " ${packages[*]-} " != *" $package "* ]]; then
		packages+=("$package")
	fi
done
[[ ${#packages[@]} -eq 0 ]] && exit 0

install=(apt-get install -y --no-install-recommends "${packages[@]}")
if ! type -P apt-get >/dev/null; then
	echo "deps: missing, by Debian's names: ${packages[*]}: install them with this system's package manager" >&2
	exit 1
fi
if [[ $EUID -ne 0 ]]; then
	echo "deps: missing: ${packages[*]}: run as root: ${install[*]}" >&2
	exit 1
fi
echo "deps: installing ${packages[*]}"
export DEBIAN_FRONTEND=noninteractive
# The package lists are fetched again only if they are absent or too old, because that takes time.
if ! "${install[@]}" -qq >/dev/null 2>&1; then
	apt-get update -qq
	"${install[@]}" -qq >/dev/null
fi
