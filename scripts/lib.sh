# What the scripts share. Source it from the top of the repository.

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# need COMMAND PACKAGE: installs the Debian package if the command is missing.
need() {
    command -v "$1" >/dev/null 2>&1 && return 0
    if ! is_root; then
        say "missing: $1 (Debian package $2); only root can install it"
        return 1
    fi
    if ! command -v apt-get >/dev/null 2>&1; then
        say "missing: $1, and there is no apt-get to install it with"
        return 1
    fi
    say "installing $2, for $1"
    if [ -z "${APT_UPDATED:-}" ]; then
        apt-get update -qq >/dev/null 2>&1 || true
        APT_UPDATED=1
    fi
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$2" >/dev/null 2>&1 \
        || { say "apt-get install $2 failed"; return 1; }
}

need_tools() {
    missing=
    need nft nftables || missing="$missing nft"
    need iptables iptables || missing="$missing iptables"
    need conntrack conntrack || missing="$missing conntrack"
    need ip iproute2 || missing="$missing ip"
    need curl curl || missing="$missing curl"
    need nslookup bind9-dnsutils || missing="$missing nslookup"
    need musl-gcc musl-tools || missing="$missing musl-gcc"
    need busybox busybox || missing="$missing busybox"
    need jq jq || missing="$missing jq"
    need kubectl kubernetes-client || missing="$missing kubectl"
}

need_build_tools() {
    command -v cargo >/dev/null 2>&1 || fail "no Rust toolchain: install one, 1.95 or later (rustup or your distribution)"
    need cc gcc || fail "a C compiler is needed to build the TLS library"
}
