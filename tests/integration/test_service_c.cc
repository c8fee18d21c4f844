#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <string>

#include "pbox/pbox.h"
#include "tests/support/daemon.h"

namespace pbox::test {

TEST_CASE("a C program works with the header and the library alone") {
  Daemon daemon;
  Program program(PBOX_C_PROGRAM_PATH, {daemon.control()});
  const auto status = program.wait_exit(kDeadlineMs);
  INFO(program.errors());
  CHECK(status == 0);
}

TEST_CASE("a program of release 0.1.0 works with a library whose structs have grown") {
  Daemon daemon;
  Program program(PBOX_OLD_PROGRAM_PATH, {daemon.control()});
  const auto status = program.wait_exit(kDeadlineMs);
  INFO(program.errors());
  CHECK(status == 0);
}

// A struct as a program's header declares it, followed by what the library must not write.
template <typename T, size_t kBytes>
struct Guarded {
  union {
    T value;
    std::array<unsigned char, kBytes + 64> bytes;
  };
  Guarded() { bytes.fill(0x5a); }
  bool is_whole() const {
    return std::all_of(bytes.begin() + kBytes, bytes.end(),
                       [](unsigned char one) { return one == 0x5a; });
  }
};

TEST_CASE("a program's struct may be larger than the library's, and its new fields must be 0") {
  constexpr size_t kBytes = sizeof(pbox_options) + 24;
  Guarded<pbox_options, kBytes> options;
  pbox_options_init_sized(&options.value, kBytes);
  CHECK(options.is_whole());
  CHECK(options.value.struct_size == kBytes);
  CHECK(options.value.world_size == 1);
  pbox_context* context = nullptr;
  REQUIRE(pbox_create(&options.value, &context) == PBOX_OK);
  Guarded<pbox_optimizer_options, sizeof(pbox_optimizer_options) + 8> optimizer;
  pbox_optimizer_options_init_sized(&optimizer.value, sizeof(pbox_optimizer_options) + 8,
                                    PBOX_ADAM);
  CHECK(optimizer.is_whole());
  optimizer.bytes[sizeof(pbox_optimizer_options)] = 1;
  CHECK(pbox_set_optimizer(context, &optimizer.value) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(context), Catch::Contains("a field of pbox_optimizer_options"));
  pbox_destroy(context);

  options.bytes[sizeof(pbox_options) + 7] = 1;
  CHECK(pbox_create(&options.value, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr),
             Catch::Contains("a field of pbox_options that this libpbox does not have") &&
                 Catch::Contains(std::to_string(kBytes) + " bytes"));
  options.value.struct_size = 0x5a5a5a5a;  // not set
  CHECK(pbox_create(&options.value, &context) == PBOX_INVALID_ARGUMENT);
  CHECK_THAT(pbox_last_error(nullptr), Catch::Contains("pbox_options_init first"));
}

}  // namespace pbox::test
