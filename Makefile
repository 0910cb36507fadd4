# `make demo` shows Roadstead working; `make test` proves it. Both install what they lack.

.PHONY: help demo clean-demo demo-ha test soak lab interchange figures bench clients dist install uninstall deny lint clean

help: ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: ## Build, start, and show three pods behind a Service. As root.
	@scripts/demo

clean-demo: ## Stop the demo and remove everything it made.
	@scripts/clean-demo

demo-ha: ## Three of each on this machine, in namespaces; one of each dies, and it is counted what that costs. As root.
	@scripts/demo-ha

test: ## Every test that this machine can run; says which it cannot.
	@scripts/test

soak: ## The random tests with many more cases than `make test` takes; CASES=5000.
	@scripts/soak

lab: ## Only the tests that need a kernel of their own: IPVS, SCTP.
	@scripts/lab

interchange: ## Our server with other controllers, or ours with another server, as the environment says; else all ours.
	@scripts/interchange

figures: ## Start-up time, memory and size of a release build.
	@scripts/figures

bench: ## The speed of API server, controllers and proxy at several sizes; of DNS, pods, rollouts and workloads beside others.
	@cargo bench -p roadstead --bench apiserver
	@cargo bench -p roadstead-controllers --bench controllers
	@cargo bench -p roadstead-proxy --bench proxy
	@benches/dns/run
	@benches/node/run
	@benches/rollout/run
	@benches/workloads/run

clients: ## Other people's clients against our API server.
	@scripts/clients

dist: ## A static binary in an archive and a Debian package, with checksums, in target/dist.
	@scripts/dist

install: ## Install target/release/roadstead, units and manual pages; PREFIX=/usr/local DESTDIR=.
	@! command -v cargo >/dev/null || cargo build --release -p roadstead
	@scripts/install

uninstall: ## Remove what `make install` installed.
	@scripts/install --uninstall

deny: ## Licences, sources, versions and published weaknesses of packages.
	@scripts/deny

lint: ## Formatting and clippy, as the tests demand them.
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets --quiet -- -D warnings

clean: clean-demo ## Remove all build products.
	@cargo clean
