# Every target is one line: the work is in scripts/ and cargo. `make demo` and `make test` need nothing but this clone
# and a Rust toolchain; they install the rest. ARGS goes to the program: make demo ARGS="--players 300 --for 20s"
.PHONY: help setup demo test test-fast check bench fuzz console

help:  ## List the targets
	@grep -E '^[a-z-]+: .*##' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 12

setup: ## Install what building needs and is missing
	@scripts/setup

demo: setup  ## A gateway with a game server and simulated players, until Ctrl-C
	@scripts/demo $(ARGS)

test:  ## Everything: formatting, lints, documentation, licences, all tests
	@scripts/setup --tests && scripts/test

test-fast: setup ## For each commit: no browser, no child process, 100 simulation seeds
	@scripts/test --fast

check:  ## The part of `make test` that reads the code without running it
	@scripts/setup --tests && scripts/check

bench: setup  ## The published scenario against a gateway of its own, with figures
	@scripts/bench $(ARGS)

fuzz: setup  ## Every fuzz target for SECONDS_EACH (default 60) seconds
	@scripts/fuzz $(ARGS)

console: ## The web console, into its checked-in dist folder (needs Node)
	@scripts/console $(ARGS)
