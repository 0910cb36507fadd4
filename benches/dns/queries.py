#!/usr/bin/env python3
"""The questions of the benchmark, and the zone that answers them in servers that read files.

usage: queries.py DIRECTORY SERVICES
"""
import random, sys

work, count = sys.argv[1], int(sys.argv[2])
random.seed(1)
with open(f"{work}/zone", "w") as zone:
    zone.write("$ORIGIN cluster.local.\n$TTL 30\n@ SOA ns.dns hostmaster 1 7200 1800 86400 5\n@ NS ns.dns\nns.dns A 10.96.0.10\n")
    for n in range(count):
        name = f"svc-{n}.ns-{n % 50}.svc"
        zone.write(f"{name} A 10.{96 + n // 65536}.{n // 256 % 256}.{n % 256}\n")
        zone.write(f"_http._tcp.{name} SRV 0 100 80 {name}\n")


def name():
    n = random.randrange(count)
    return f"svc-{n}.ns-{n % 50}.svc.cluster.local"


with open(f"{work}/hits", "w") as out:
    out.writelines(f"{name()} A\n" for _ in range(100000))
with open(f"{work}/mix", "w") as out:
    for n in range(100000):
        lines = [f"{name()} A\n", f"{name()} AAAA\n",
                 f"api{random.randrange(9999)}.example.com.ns-1.svc.cluster.local A\n",
                 f"api{random.randrange(9999)}.example.com.svc.cluster.local AAAA\n"]
        out.write(lines[n % 4])
