# A thin front for people; CMake does the work. `make help` lists the targets.
BUILD    ?= build
JOBS     ?= $(shell nproc)
SECONDS_ ?= $(if $(SECONDS),$(SECONDS),60)
CMAKE    := cmake
CTEST    := ctest --output-on-failure -j $(JOBS)

.PHONY: all cuda gpu-test demo test golden check asan ubsan tsan races fuzz fuzz-built fuzz-targets bench format format-check layers soak clean help
all: ## build for this machine (release with symbols) into build/
	@$(CMAKE) --preset release >/dev/null
	@$(CMAKE) --build build -j $(JOBS)

cuda: ## the same with kernels for every NVIDIA card (needs nvcc), and what they use of it
	@$(CMAKE) --preset release -DSPILLWAY_CUDA=ON -DSPILLWAY_CUDA_ARCHS=all >/dev/null
	@$(CMAKE) --build build -j $(JOBS)
	@tools/cuda_report build/cuda

gpu-test: all ## the tests of the CUDA backend, on this machine's card
	@$(CMAKE) --build build -j $(JOBS) --target cuda_tests
	@cd build && ctest --output-on-failure -j 1 -R '^cuda_.*_test$$'

test: all ## unit and whole-program tests
	@$(CMAKE) --build build -j $(JOBS) --target unit_tests
	@cd build && $(CTEST) -LE golden

golden: all ## compare with the reference model's outputs
	@$(CMAKE) --build build -j $(JOBS) --target unit_tests
	@cd build && $(CTEST) -L golden

asan ubsan: ## the tests under a sanitizer
	@$(CMAKE) --preset $@ >/dev/null
	@$(CMAKE) --build build-$@ -j $(JOBS)
	@$(CMAKE) --build build-$@ -j $(JOBS) --target unit_tests
	@cd build-$@ && $(CTEST) -LE "golden|nosan"

# Only where threads meet: the arithmetic of one thread is the other sanitizers' business, and takes
# TSan many minutes.
TSAN_TESTS := pool|^mail_test|^offload_test|cpu_backend|cpu_linear|cpu_moe|engine_test|engine_faults|stop_test|server_|watchdog|generator|jinja_test|api_test|puppet|cli_test|sdk_test
tsan: ## the tests of everything that runs in threads, under ThreadSanitizer
	@$(CMAKE) --preset tsan >/dev/null
	@$(CMAKE) --build build-tsan -j $(JOBS)
	@$(CMAKE) --build build-tsan -j $(JOBS) --target unit_tests
	@cd build-tsan && $(CTEST) -R "$(TSAN_TESTS)"

races: ## the CUDA kernels under the emulator, their shared memory watched for races
	@$(CMAKE) --preset races >/dev/null
	@$(CMAKE) --build build-races -j $(JOBS) --target cuda_tests
	@cd build-races && $(CTEST) -R '^cuda_.*_test$$'

FUZZ_TARGETS := $(notdir $(basename $(wildcard src/*/*_fuzz.c)))
fuzz: ## fuzz one parser: make fuzz T=safetensors [SECONDS=60]
	@test -n "$(T)" || { echo "usage: make fuzz T=NAME [SECONDS=60]; names:"; ls src/*/*_fuzz.c | sed 's|.*/||; s|_fuzz.c||'; exit 2; }
	@$(CMAKE) --preset fuzz >/dev/null
	@$(CMAKE) --build build-fuzz -j $(JOBS) --target $(T)_fuzz
	@$(MAKE) --no-print-directory fuzz-built T=$(T)

fuzz-built: # the same with what is built
	@mkdir -p build-fuzz/corpus-$(T)
	@build-fuzz/$(T)_fuzz -max_total_time=$(SECONDS_) -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	    build-fuzz/corpus-$(T) $(wildcard tests/fuzz/$(T))

fuzz-targets: ## build all that can be fuzzed
	@$(CMAKE) --preset fuzz >/dev/null
	@$(CMAKE) --build build-fuzz -j $(JOBS) --target $(FUZZ_TARGETS)

bench: all ## speed of the demo model on this machine
	@build/spillway bench --model models/rill

demo: ## build and chat with the demo model over HTTP
	@./demo.sh

format: ## run clang-format over our sources
	@git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' | grep -v unicode_tables | xargs clang-format -i

format-check: ## check the formatting (skips where clang-format is missing)
	@command -v clang-format >/dev/null || { echo "format: skipped, no clang-format here"; exit 0; }; \
	  git ls-files -co --exclude-standard "*.c" "*.h" "*.cu" "*.cuh" | grep -v unicode_tables | xargs clang-format --dry-run --Werror && echo "format: ok"

layers: ## check which way the includes point
	@tools/check_layers

check: layers format-check test golden ## what CI runs: format, layers, warnings as errors, tests

clean: ## remove the build folders
	@rm -rf build build-*

help: ## this list
	@grep -hE '^[a-z][a-z -]*:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 24
