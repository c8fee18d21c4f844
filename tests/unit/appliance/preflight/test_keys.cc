// The box's keys, as its configuration names them.
#include <catch2/catch.hpp>

#include "appliance/preflight/keys.h"
#include "tests/support/key_folder.h"

namespace pbox::preflight {
namespace {

using Catch::Contains;
using test::KeyFolder;

config::Config config_of(const std::string& folder) {
  config::Config config;
  config.box.name = "a";
  config.security.keys = folder;
  return config;
}

}  // namespace

TEST_CASE("a box loads keys of its own name, or none") {
  const auto none = load_keys(config_of(""));
  REQUIRE(none.ok());
  CHECK(*none == nullptr);
  const KeyFolder folder(test::authority(), "pbox://rack/box/a");
  const auto loaded = load_keys(config_of(folder.path()));
  REQUIRE(loaded.ok());
  CHECK((*loaded)->identity().box == "a");
}

TEST_CASE("keys of another box, or of a worker, are refused") {
  const auto signer = test::authority();
  for (const char* uri : {"pbox://rack/box/b", "pbox://rack/tenant/t/job/*/rank/*"}) {
    const KeyFolder folder(signer, uri);
    const auto loaded = load_keys(config_of(folder.path()));
    REQUIRE_FALSE(loaded.ok());
    CHECK_THAT(loaded.error().message, Contains(uri) && Contains("this is box 'a'"));
  }
}

TEST_CASE("keys and cluster.name, if that is set, state the same cluster") {
  const KeyFolder folder(test::authority(), "pbox://rack/box/a");
  auto config = config_of(folder.path());
  config.cluster.name = "rack";
  CHECK(load_keys(config).ok());
  config.cluster.name = "lab";
  const auto loaded = load_keys(config);
  REQUIRE_FALSE(loaded.ok());
  CHECK_THAT(loaded.error().message, Contains("cluster 'rack'") && Contains("cluster.name = lab"));
}

TEST_CASE("keys that cannot be loaded are refused with the key of the configuration") {
  const auto loaded = load_keys(config_of("/nonexistent"));
  REQUIRE_FALSE(loaded.ok());
  CHECK_THAT(loaded.error().message, Contains("security.keys: ") && Contains("/nonexistent"));
}

TEST_CASE("a reload takes new keys, but none of another cluster") {
  const auto signer = test::authority();
  const KeyFolder folder(signer, "pbox://rack/box/a"), other(signer, "pbox://lab/box/a");
  const auto present = load_keys(config_of(folder.path()));
  REQUIRE(present.ok());
  const auto again = reload_keys(config_of(folder.path()), **present);
  REQUIRE(again.ok());
  CHECK(*again != *present);
  const auto moved = reload_keys(config_of(other.path()), **present);
  REQUIRE_FALSE(moved.ok());
  CHECK_THAT(moved.error().message, Contains("cluster 'lab'") && Contains("in cluster 'rack'"));
}

TEST_CASE("keys that expire within a week are pointed out") {
  constexpr int64_t kNow = 1'800'000'000, kDay = 24 * 3600;
  CHECK(expiry_warning(kNow + 8 * kDay, kNow).empty());
  CHECK_THAT(expiry_warning(kNow + 7 * kDay, kNow), Contains("2027-01-22 08:00:00 UTC"));
  CHECK_THAT(expiry_warning(kNow + kDay, kNow), Contains("keys expire on"));
  CHECK_THAT(expiry_warning(kNow - kDay, kNow),
             Contains("keys expired on") && Contains("pboxctl keys box"));
}

}  // namespace pbox::preflight
