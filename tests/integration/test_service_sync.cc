// What may be chosen of the consistency model in the C ABI, and what is refused before any network.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "pbox/pbox.h"

namespace pbox::test {
namespace {

// The status of making a context with these options, none of which is ever joined.
pbox_status create(const pbox_options& options) {
  pbox_context* context = nullptr;
  const pbox_status status = pbox_create(&options, &context);
  pbox_destroy(context);
  return status;
}

pbox_status read(const char* name, const char* text, pbox_options* options) {
  setenv(name, text, 1);
  const pbox_status status = pbox_options_from_environment(options);
  unsetenv(name);
  return status;
}

}  // namespace

TEST_CASE("a consistency model that is out of range is refused by field and value") {
  struct Row {
    void (*change)(pbox_options&);
    const char* words;
  };
  const Row rows[] = {
      {[](pbox_options& o) { o.sync = -1; }, "sync -1 is unknown"},
      {[](pbox_options& o) { o.sync = 7; }, "sync 7 is unknown"},
      {[](pbox_options& o) { o.staleness = 65; }, "staleness 65 must be at most 64"},
      {[](pbox_options& o) { o.sync_probability = 0; }, "must be in (0, 1]"},
      {[](pbox_options& o) { o.sync_probability = 1.5f; }, "sync_probability 1.5"},
      {[](pbox_options& o) { o.sync_probability = NAN; }, "must be in (0, 1]"},
      {[](pbox_options& o) { o.release = 2; }, "release 2 is unknown"},
      {[](pbox_options& o) { o.reads = -3; }, "reads -3 is unknown"},
      {[](pbox_options& o) { o.quorum = 5; }, "quorum 5 must be at most world_size 4"},
  };
  for (const Row& row : rows) {
    pbox_options options;
    pbox_options_init(&options);
    options.world_size = 4;
    CHECK(create(options) == PBOX_OK);
    row.change(options);
    CHECK(create(options) == PBOX_INVALID_ARGUMENT);
    CHECK_THAT(pbox_last_error(nullptr), Catch::Contains(row.words));
  }
}

TEST_CASE("the consistency model may be chosen in the environment, by the words of the manual") {
  pbox_options options;
  CHECK(pbox_options_from_environment(&options) == PBOX_OK);
  CHECK(options.sync == PBOX_SYNC_BSP);
  CHECK(options.staleness == 0);
  CHECK(options.sync_probability == 1.0f);
  CHECK(options.release == PBOX_RELEASE_SOFT);
  CHECK(options.reads == PBOX_READS_FRESH);
  CHECK(options.quorum == 0);
  int32_t model = 0;
  for (const char* word : {"bsp", "asp", "ssp", "essp", "pssp", "dpssp", "drop"}) {
    CHECK(read("PBOX_SYNC", word, &options) == PBOX_OK);
    CHECK(options.sync == model++);
  }
  CHECK(read("PBOX_STALENESS", "3", &options) == PBOX_OK);
  CHECK(options.staleness == 3);
  CHECK(read("PBOX_SYNC_PROBABILITY", "0.25", &options) == PBOX_OK);
  CHECK(options.sync_probability == 0.25f);
  CHECK(read("PBOX_RELEASE", "lazy", &options) == PBOX_OK);
  CHECK(options.release == PBOX_RELEASE_LAZY);
  CHECK(read("PBOX_READS", "cached", &options) == PBOX_OK);
  CHECK(options.reads == PBOX_READS_CACHED);
  CHECK(read("PBOX_QUORUM", "1", &options) == PBOX_OK);
  CHECK(options.quorum == 1);
  CHECK(read("PBOX_SYNC", "BSP", &options) == PBOX_INVALID_ARGUMENT);
  CHECK(read("PBOX_SYNC_PROBABILITY", "half", &options) == PBOX_INVALID_ARGUMENT);
}

}  // namespace pbox::test
