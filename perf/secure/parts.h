// The parts of scenario `secure`. Each compares boxes without keys, with keys, and with keys that
// encrypt, in turns. Every ratio is the median of the turns' ratios.
#pragma once

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <vector>

#include "nic/seal/session_keys.h"
#include "perf/measure.h"

namespace pbox::perf {

inline constexpr seal::Suite kSuites[] = {seal::Suite::kNone, seal::Suite::kGmac256,
                                          seal::Suite::kGcm256};

// Returns "off", "gmac" or "gcm".
const char* name_of(seal::Suite suite);

struct SecureOptions {
  uint32_t turns = 0;  // 0: each part has its own default
  uint32_t workers = 0;
  uint32_t handshakes_per_second = 1000;
  // First rate of the box's cable in Mbit/s. It doubles until the cable is no longer the
  // bottleneck.
  uint32_t first_rate_mbit = 1000;
};

// Returns the value, or `fallback` if it is 0.
uint32_t given_or(uint32_t value, uint32_t fallback);

// Prints a median and its quartiles, "0.970 (0.950 to 0.990)", in a column of its own.
void print(const Spread& spread, std::ostream& report, int digits = 3);
nlohmann::json to_json(const Spread& spread);

nlohmann::json measure_ciphers(const SecureOptions& options, std::ostream& report);
nlohmann::json measure_pipelines(const SecureOptions& options, std::ostream& report);
nlohmann::json measure_exchanges(const SecureOptions& options, std::ostream& report);
nlohmann::json measure_rack(const SecureOptions& options, std::ostream& report);
nlohmann::json measure_joins(const SecureOptions& options, std::ostream& report);
nlohmann::json measure_handshakes(const SecureOptions& options, std::ostream& report);

}  // namespace pbox::perf
