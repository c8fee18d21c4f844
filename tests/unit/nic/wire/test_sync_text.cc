// The text form of consistency models.
#include <catch2/catch.hpp>

#include "base/glob.h"
#include "nic/wire/sync.h"

namespace pbox::wire {

using Catch::Contains;

TEST_CASE("each model has a text that reads back as the same model") {
  const struct {
    const char* text;
    SyncSpec spec;
  } rows[] = {
      {"bsp", {}},
      {"asp", {.model = SyncModel::kAsp}},
      {"ssp:3", {.model = SyncModel::kSsp, .staleness = 3}},
      {"ssp:0:lazy", {.model = SyncModel::kSsp, .release = Release::kLazy}},
      {"ssp:2:cached", {.model = SyncModel::kSsp, .staleness = 2, .reads = Reads::kCached}},
      {"essp:4", {.model = SyncModel::kEssp, .staleness = 4, .reads = Reads::kCached}},
      {"pssp:3:0.1", {.model = SyncModel::kPssp, .staleness = 3, .probability = 0.1f}},
      {"dpssp:5:1:lazy", {.model = SyncModel::kDpssp, .staleness = 5, .release = Release::kLazy}},
      {"dpssp:2:0.5:gradient",
       {.model = SyncModel::kDpssp, .staleness = 2, .probability = 0.5f, .by_gradient = true}},
      {"drop:2", {.model = SyncModel::kDrop, .quorum = 2}},
      {"drop:2:500ms", {.model = SyncModel::kDrop, .quorum = 2, .grace_ms = 500}},
      {"drop:2:next", {.model = SyncModel::kDrop, .quorum = 2, .counts_late = true}},
      {"drop:2:9ms:next",
       {.model = SyncModel::kDrop, .quorum = 2, .grace_ms = 9, .counts_late = true}},
      {"drop:2:auto", {.model = SyncModel::kDrop, .quorum = 2, .grace_ms = kGraceAuto}},
      {"adaptive:1-8:0.25",
       {.model = SyncModel::kAdaptive, .staleness = 8, .probability = 0.25f, .staleness_min = 1}},
  };
  for (const auto& row : rows) {
    INFO(row.text);
    const auto spec = parse_sync_text(row.text);
    REQUIRE(spec.ok());
    CHECK(*spec == row.spec);
    CHECK(sync_text(*spec) == row.text);
  }
  CHECK(*parse_sync_text("pssp:3") == *parse_sync_text("pssp:3:1"));
  CHECK(*parse_sync_text("adaptive:8") == *parse_sync_text("adaptive:0-8:1"));
  CHECK(*parse_sync_text("ssp:3:soft:fresh") == *parse_sync_text("ssp:3"));
  CHECK(*parse_sync_text("pssp:3:lazy:soft") == *parse_sync_text("pssp:3:1"));
}

TEST_CASE("a text that is no model is refused, with what may stand there") {
  const struct {
    const char *text, *says;
  } rows[] = {{"", "the model is unknown"},
              {"SSP:3", "write bsp, asp, ssp"},
              {"ssp", "as in ssp:3"},
              {"ssp:", "as in ssp:3"},
              {"ssp:three", "as in ssp:3"},
              {"ssp:-1", "as in ssp:3"},
              {"adaptive:1-", "as in adaptive:1-8"},
              {"drop", "as in drop:2"},
              {"drop:2:500", "a grace, such as 500ms or auto"},
              {"drop:2:-1ms", "'-1ms' has no"},
              {"drop:2:4294967295ms", "'4294967295ms' has no"},
              {"ssp:3:500ms", "'500ms' has no"},
              {"ssp:3:auto", "'auto' has no"},
              {"bsp:3", "'3' has no meaning there"},
              {"ssp:3:0.1", "'0.1' has no"},
              {"pssp:3:0.1:0.2", "'0.2' has no"},
              {"ssp:3:eager", "'eager' has no"},
              {"ssp:4294967296", "as in ssp:3"},
              {"ssp:3::lazy", "'' has no meaning"}};
  for (const auto& row : rows) {
    INFO(row.text);
    const auto spec = parse_sync_text(row.text);
    REQUIRE_FALSE(spec.ok());
    CHECK_THAT(spec.error().message, Contains(row.says));
    CHECK_THAT(spec.error().message, Contains("sync '" + std::string(row.text) + "'"));
  }
}

TEST_CASE("a glob stands for the names of that form") {
  CHECK(matches_glob("*", ""));
  CHECK(matches_glob("embedding.*", "embedding.weight"));
  CHECK(matches_glob("*.weight", "layer.0.weight"));
  CHECK(matches_glob("a*b?d", "axxbbcd"));
  CHECK_FALSE(matches_glob("embedding.*", "embedding"));
  CHECK_FALSE(matches_glob("a?", "a"));
  CHECK_FALSE(matches_glob("", "a"));
}

}  // namespace pbox::wire
