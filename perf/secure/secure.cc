// Scenario `secure`: the cost of keys. See parts.h.
#include <sys/resource.h>

#include <algorithm>
#include <iomanip>
#include <sstream>
#include <stdexcept>

#include "nic/crypto/cipher.h"
#include "perf/scenario.h"
#include "perf/secure/parts.h"

namespace pbox::perf {
namespace {

constexpr int kPrecedence = -15;  // nice value

struct Part {
  const char* name;
  const char* question;
  nlohmann::json (*measure)(const SecureOptions& options, std::ostream& report);
};

constexpr Part kParts[] = {
    {"ciphers", "ways to compute a packet's tag", measure_ciphers},
    {"pipeline", "one core's pipeline", measure_pipelines},
    {"exchange", "an exchange over loopback, which the cores limit", measure_exchanges},
    {"rack", "an exchange over shaped cables, which they limit at low rates", measure_rack},
    {"join", "64 ranks join a job", measure_joins},
    {"handshakes", "rounds of a job during TLS handshakes of other clients with its box",
     measure_handshakes},
};

void add_options(po::options_description& options) {
  std::string names;
  for (const Part& part : kParts) names += (names.empty() ? "" : ", ") + std::string(part.name);
  options.add_options()("only", po::value<std::vector<std::string>>()->default_value({}, "all"),
                        ("a part to measure; can be repeated: " + names).c_str())(
      "turns", po::value<uint32_t>()->default_value(0),
      "timed turns of each part; 0: the part's own default")(
      "workers", po::value<uint32_t>()->default_value(0),
      "number of workers; 0: 4 for pipeline, 2 for the exchanges, 64 for join")(
      "handshakes", po::value<uint32_t>()->default_value(1000), "TLS handshakes per second")(
      "rate-mbit", po::value<uint32_t>()->default_value(1000),
      "first rate of the box's cable in Mbit/s; the rate doubles as long as the cable is the "
      "limit");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const auto only = options["only"].as<std::vector<std::string>>();
  for (const std::string& name : only) {
    const bool is_known = std::any_of(std::begin(kParts), std::end(kParts),
                                      [&](const Part& part) { return name == part.name; });
    if (!is_known)
      throw std::runtime_error(
          "--only " + name +
          ": this part is unknown; use ciphers, pipeline, exchange, rack, join or handshakes");
  }
  const SecureOptions given{.turns = options["turns"].as<uint32_t>(),
                            .workers = options["workers"].as<uint32_t>(),
                            .handshakes_per_second = options["handshakes"].as<uint32_t>(),
                            .first_rate_mbit = options["rate-mbit"].as<uint32_t>()};
  if (given.workers > 64) throw std::runtime_error("--workers must be in [0, 64]");
  if (given.handshakes_per_second == 0 || given.first_rate_mbit == 0) {
    throw std::runtime_error("--handshakes and --rate-mbit must be above 0");
  }
  // As on the rack, this process and its children run with a higher priority than the machine's
  // other programs, so that those disturb the measurement less. Without root the priority stays as
  // it is.
  setpriority(PRIO_PROCESS, 0, kPrecedence);
  report << "library of the ciphers: " << crypto::fastest_library() << "\n";
  nlohmann::json figures = {{"library", crypto::fastest_library()}};
  for (const Part& part : kParts) {
    if (!only.empty() && std::find(only.begin(), only.end(), part.name) == only.end()) continue;
    report << "\n" << part.name << ": " << part.question << "\n";
    figures[part.name] = part.measure(given, report);
  }
  return figures;
}

const ScenarioRegistration kRegistration({.name = "secure",
                                          .summary = "the cost of keys: packets, exchanges, joins",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace

const char* name_of(seal::Suite suite) {
  switch (suite) {
    case seal::Suite::kNone: return "off";
    case seal::Suite::kGmac256: return "gmac";
    case seal::Suite::kGcm256: return "gcm";
  }
  return "";
}

uint32_t given_or(uint32_t value, uint32_t fallback) {
  return value != 0 ? value : fallback;
}

void print(const Spread& spread, std::ostream& report, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << spread.median << " (" << spread.low << " to "
       << spread.high << ")";
  report << std::setw(26) << text.str();
}

nlohmann::json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"low", spread.low}, {"high", spread.high}};
}

}  // namespace pbox::perf
