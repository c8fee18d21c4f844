// The price of a rack and the time of its exchanges, for each place of the boxes and each rate of
// the workers' NICs. Pure, except for reading the file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "perf/phub/places.h"

namespace pbox::perf {

struct NicPrice {
  double gbps = 0;
  double price = 0;  // NIC, cable and port of the switch
};

// The format is that of phub/prices.json.
struct PriceList {
  std::string currency;
  double worker = 0;           // a worker machine without its NIC
  double box = 0;              // a box, or a machine for a sharded box, without its NICs
  double box_gbps = 0;         // the most that one box sums, in each direction
  uint32_t box_nics = 0;       // NICs that fit into a box
  std::vector<NicPrice> nics;  // by rate, ascending
};

// Throws std::runtime_error that names the file, the field, its value and the remedy.
PriceList price_list_from_file(const std::string& path);

// A rack with NICs of `gbps` in the workers.
struct Offer {
  BoxPlace place = BoxPlace::kCentral;
  double gbps = 0;
  double price = 0;
  double exchange_ms = 0;
  uint32_t boxes = 0;  // machines besides the workers
  // Iterations per second, if computing and exchanging never overlap, and if they always do.
  double rate_apart = 0, rate_overlapped = 0;
};

struct CostCase {
  uint32_t workers = 2;
  double model_bytes = 0;
  double compute_ms = 0;
  // Time of an exchange over the least that the cables allow, by BoxPlace.
  double over_limit[3] = {1, 1, 1};
};

// Returns an offer for each place and each NIC of the list. Leaves out central boxes for which no
// NICs of the list are enough. Central boxes are as few as possible, and get the cheapest NICs that
// carry all workers' rates.
std::vector<Offer> offers(const PriceList& prices, const CostCase& wanted);

}  // namespace pbox::perf
