#include <catch2/catch.hpp>

#include "perf/phub/prices.h"
#include "tests/unit/perf/temporary_file.h"

namespace pbox::perf::prices_test {
namespace {

constexpr char kNics[] =
    R"([{"gbps": 10, "nic": 60, "port": 40}, {"gbps": 100, "nic": 300, "port": 200}])";

std::string list(const std::string& worker, const std::string& box_nics, const std::string& nics) {
  return R"({"currency": "EUR", "worker": )" + worker + R"(, "box": 1000, "box_gbps": 400, )" +
         R"("box_nics": )" + box_nics + R"(, "nics": )" + nics + "}";
}

PriceList read(const std::string& text) {
  const TemporaryFile file(text);
  return price_list_from_file(file.path());
}

std::string refusal(const std::string& text) {
  try {
    read(text);
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    return message.substr(message.find(": ") + 2);
  }
  return "";
}

const Offer& find(const std::vector<Offer>& all, BoxPlace place, double gbps) {
  for (const Offer& offer : all) {
    if (offer.place == place && offer.gbps == gbps) return offer;
  }
  FAIL("there is no offer at " << gbps << " Gb/s");
  return all.front();
}

TEST_CASE("an offer costs its workers, its boxes and all their NICs") {
  const auto all = offers(read(list("2000", "4", kNics)),
                          {.workers = 8, .model_bytes = 100e6, .compute_ms = 100});
  // 80 Gb/s by one NIC of 100 cost less than by eight of 10, of which only four fit.
  CHECK(find(all, BoxPlace::kCentral, 10).price == 8 * (2000 + 100) + 1000 + 500);
  CHECK(find(all, BoxPlace::kCentral, 10).boxes == 1);
  // 800 Gb/s: two boxes of 400 Gb/s with four NICs each.
  CHECK(find(all, BoxPlace::kCentral, 100).price == 8 * (2000 + 500) + 2 * (1000 + 4 * 500));
  CHECK(find(all, BoxPlace::kSharded, 10).price == 8 * (2000 + 100) + 8 * (1000 + 100));
  CHECK(find(all, BoxPlace::kColocated, 100).price == 8 * (2000 + 500));
  CHECK(find(all, BoxPlace::kColocated, 100).boxes == 0);
}

TEST_CASE("a colocated box sends shares twice over a worker's cable, and measured times count") {
  CostCase wanted{.workers = 4, .model_bytes = 125e6, .compute_ms = 100};
  const auto prices = read(list("2000", "4", kNics));
  const auto ideal = offers(prices, wanted);
  CHECK(find(ideal, BoxPlace::kCentral, 10).exchange_ms == Approx(100));
  CHECK(find(ideal, BoxPlace::kSharded, 10).exchange_ms == Approx(100));
  CHECK(find(ideal, BoxPlace::kColocated, 10).exchange_ms == Approx(150));
  CHECK(find(ideal, BoxPlace::kColocated, 10).rate_apart == Approx(4));
  CHECK(find(ideal, BoxPlace::kCentral, 100).rate_overlapped == Approx(10));
  wanted.over_limit[static_cast<size_t>(BoxPlace::kCentral)] = 2;
  CHECK(find(offers(prices, wanted), BoxPlace::kCentral, 10).exchange_ms == Approx(200));
}

TEST_CASE("a central box is left out where no number of boxes can sum so much") {
  const auto prices = read(list("2000", "4", R"([{"gbps": 10000, "nic": 1, "port": 1}])"));
  const auto all = offers(prices, {.workers = 256, .model_bytes = 1e6, .compute_ms = 1});
  REQUIRE(all.size() == 2);
  for (const Offer& offer : all) CHECK(offer.place != BoxPlace::kCentral);
}

TEST_CASE("an error in a list of prices names the field, its value and the remedy") {
  CHECK(refusal(list("-5", "4", kNics)) == "worker is -5: use a number from 0 to 1e+09");
  CHECK(refusal(list("1", "0", kNics)) == "box_nics is 0: use a whole number from 1 to 64");
  CHECK(refusal(list("1", "4", "[]")) == "nics is []: make it a list with at least one element");
  CHECK(refusal(list("1", "4", R"([{"gbps": 10, "nic": 1}])")) ==
        "nics[0].port is missing: add it");
  CHECK(refusal(list("1", "4",
                     R"([{"gbps": 10, "nic": 1, "port": 1}, {"gbps": 5, "nic": 1, "port": 1}])")) ==
        "nics[1].gbps is 5: list the NICs by rate, the slowest first");
  CHECK(refusal(list("0", "4", R"([{"gbps": 10, "nic": 0, "port": 0}])")) ==
        "worker is 0: workers and NICs all have price 0; give at least one a higher price");
  CHECK(refusal(R"({"price": 3})")
            .starts_with("price is 3: this member is unknown; use note, currency, worker"));
}

}  // namespace
}  // namespace pbox::perf::prices_test
