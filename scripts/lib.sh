# What the scripts share. Source it from the top of the repository.

say() { printf '%s\n' "$*" >&2; }
fail() { say "error: $*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# has_cgroups: whether we may make control groups with the limits that pods have, in version one or two.
has_cgroups() {
    local controller top probe
    for controller in memory pids cpu; do
        top=$(awk -v name="$controller" '$3 == "cgroup" && ("," $4 ",") ~ ("," name ",") { print $2; exit }' /proc/mounts)
        if [ -z "$top" ]; then
            top=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
            grep -qsw "$controller" "$top/cgroup.controllers" || return 1
        fi
        probe=$top/roadstead-probe-$$
        mkdir "$probe" 2>/dev/null && rmdir "$probe" || return 1
    done
}

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

# What a demo needs: rules to look at, and clients.
need_demo_tools() {
    missing=
    need nft nftables || missing="$missing nft"
    need ip iproute2 || missing="$missing ip"
    need curl curl || missing="$missing curl"
    need nslookup bind9-dnsutils || missing="$missing nslookup"
    need kubectl kubernetes-client || missing="$missing kubectl"
}

need_tools() {
    need_demo_tools
    need iptables iptables || missing="$missing iptables"
    need conntrack conntrack || missing="$missing conntrack"
    need musl-gcc musl-tools || missing="$missing musl-gcc"
    need busybox busybox || missing="$missing busybox"
    need runc runc || missing="$missing runc"
    need containerd containerd || missing="$missing containerd"
    need etcd etcd-server || missing="$missing etcd"
    need jq jq || missing="$missing jq"
}

need_build_tools() {
    command -v cargo >/dev/null 2>&1 || fail "no Rust toolchain: install one, 1.95 or later (rustup or your distribution)"
    need cc gcc || fail "a C compiler is needed to build the TLS library"
}

# cargo_with_progress TOTAL ARGUMENTS: cargo, which has so much to compile at most. On a terminal it shows itself
# what it compiles and how many of how many; elsewhere a line says so now and then.
cargo_with_progress() {
    local total=$1 log started now process next=10
    shift
    if [ -t 2 ]; then
        cargo "$@"
        return
    fi
    log=$(mktemp)
    started=$SECONDS
    cargo "$@" >"$log" 2>&1 &
    process=$!
    while sleep 1; kill -0 "$process" 2>/dev/null; do
        now=$((SECONDS - started))
        [ "$now" -ge "$next" ] || continue
        # The longer it takes, the less often.
        next=$((now + (now < 60 ? 10 : 30)))
        awk -v now="$now" -v total="$total" '/^ +(Compiling|Checking) / {count++; name = $2}
            END {if (count) printf "  %d s: %d of at most %d compiled, now %s\n", now, count, total, name}' "$log" >&2
    done
    if ! wait "$process"; then
        cat "$log" >&2
        rm -f "$log"
        return 1
    fi
    now=$((SECONDS - started))
    [ "$now" -lt 10 ] || say "  compiled in $now s"
    rm -f "$log"
}

# packages EDGES ARGUMENTS: how many packages cargo needs for what the arguments name.
packages() {
    local edges=$1
    shift
    cargo tree --edges "$edges" --prefix none "$@" 2>/dev/null | awk '{print $1, $2}' | sort -u | wc -l
}
