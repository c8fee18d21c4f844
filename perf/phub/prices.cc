#include "perf/phub/prices.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "perf/json_file.h"

namespace pbox::perf {
namespace {

constexpr double kPriceMax = 1e9;
constexpr double kGbpsMax = 1e5;
constexpr uint32_t kNicsMax = 64;
constexpr uint32_t kBoxesMax = 256;

struct Boxes {
  uint32_t count = 0;
  double price = 0;
};

// Returns the fewest central boxes that together carry `gbps` in each direction, with the cheapest
// NICs of one kind that suffice; nullopt if no NICs in the list suffice.
std::optional<Boxes> central_boxes(const PriceList& prices, double gbps) {
  const auto fewest = static_cast<uint32_t>(std::ceil(gbps / prices.box_gbps));
  std::optional<Boxes> best;
  for (uint32_t count = std::max(fewest, 1u); count <= kBoxesMax && !best; ++count) {
    for (const NicPrice& nic : prices.nics) {
      const double nics_per_box = std::ceil(gbps / count / nic.gbps);
      if (nics_per_box > prices.box_nics) continue;
      const double price = count * (prices.box + nics_per_box * nic.price);
      if (!best || price < best->price) best = Boxes{count, price};
    }
  }
  return best;
}

std::optional<Boxes> boxes_for(const PriceList& prices, const CostCase& wanted, BoxPlace place,
                               const NicPrice& nic) {
  switch (place) {
    case BoxPlace::kCentral: return central_boxes(prices, wanted.workers * nic.gbps);
    case BoxPlace::kSharded:
      return Boxes{wanted.workers, wanted.workers * (prices.box + nic.price)};
    case BoxPlace::kColocated: return Boxes{};
  }
  return std::nullopt;
}

}  // namespace

PriceList price_list_from_file(const std::string& path) {
  const JsonFile file(path);
  const JsonField root = file.root();
  root.allow_only({"note", "currency", "worker", "box", "box_gbps", "box_nics", "nics"});
  PriceList list{.currency = root.at("currency").text(16),
                 .worker = root.at("worker").number(0, kPriceMax),
                 .box = root.at("box").number(0, kPriceMax),
                 .box_gbps = root.at("box_gbps").number(0.001, kGbpsMax),
                 .box_nics = static_cast<uint32_t>(root.at("box_nics").whole_number(1, kNicsMax)),
                 .nics = {}};
  for (const JsonField& one : root.at("nics").list()) {
    one.allow_only({"gbps", "nic", "port"});
    const NicPrice nic{one.at("gbps").number(0.001, kGbpsMax),
                       one.at("nic").number(0, kPriceMax) + one.at("port").number(0, kPriceMax)};
    if (!list.nics.empty() && nic.gbps <= list.nics.back().gbps) {
      one.at("gbps").refuse("list the NICs by rate, the slowest first");
    }
    list.nics.push_back(nic);
  }
  if (list.worker + list.nics.front().price == 0) {
    root.at("worker").refuse("workers and NICs all have price 0; give at least one a higher price");
  }
  return list;
}

std::vector<Offer> offers(const PriceList& prices, const CostCase& wanted) {
  PBOX_CHECK(wanted.workers >= 2);
  std::vector<Offer> all;
  for (const NicPrice& nic : prices.nics) {
    for (const BoxPlace place : kBoxPlaces) {
      const auto boxes = boxes_for(prices, wanted, place, nic);
      if (!boxes) continue;
      const double exchange_ms = wanted.model_bytes * 8 / (nic.gbps * 1e6) *
                                 cable_load(place, wanted.workers) *
                                 wanted.over_limit[static_cast<size_t>(place)];
      all.push_back({.place = place,
                     .gbps = nic.gbps,
                     .price = wanted.workers * (prices.worker + nic.price) + boxes->price,
                     .exchange_ms = exchange_ms,
                     .boxes = boxes->count,
                     .rate_apart = 1e3 / (wanted.compute_ms + exchange_ms),
                     .rate_overlapped = 1e3 / std::max(wanted.compute_ms, exchange_ms)});
    }
  }
  return all;
}

}  // namespace pbox::perf
