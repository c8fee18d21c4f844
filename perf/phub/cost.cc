// Scenario `cost`: throughput per price of a rack with a central box, compared with racks whose
// boxes are colocated with the workers or on more machines, and whose workers may have faster NICs.
// Prices come from a file; the time of an exchange comes from the cables, and from what scenario
// `phub` measured.
#include <algorithm>
#include <iomanip>
#include <optional>
#include <stdexcept>

#include "perf/json_file.h"
#include "perf/models.h"
#include "perf/phub/prices.h"
#include "perf/scenario.h"

namespace pbox::perf::phub_cost {
namespace {

constexpr uint32_t kWorkersMax = 256;
constexpr double kPricesPerUnit = 1e6;  // rates are per million of the currency

void add_options(po::options_description& options) {
  options.add_options()("prices", po::value<std::string>()->default_value("perf/phub/prices.json"),
                        "file of prices in the form of perf/phub/prices.json, which has examples")(
      "figures", po::value<std::string>()->default_value(""),
      "output of `pbox-perf phub --json` with the same number of workers: the time that the cables "
      "allow is multiplied by the factor measured there (over_limit); without it, exchanges are as "
      "fast as the cables allow")("workers", po::value<uint32_t>()->default_value(8),
                                  "worker machines")(
      "model", po::value<std::string>()->default_value("resnet50"), kModelHelp)(
      "compute-ms", po::value<double>()->default_value(100), "computing time of one iteration");
}

// Reads from the figures of `phub` how many times longer exchanges took than the cables allow.
void read_figures(const std::string& path, CostCase& wanted) {
  const JsonFile file(path);
  const JsonField list = file.root().at("placement");
  bool is_found = false;
  for (const JsonField& row : list.list()) {
    if (row.at("workers").whole_number(1, kWorkersMax) != wanted.workers) continue;
    is_found = true;
    for (const BoxPlace place : kBoxPlaces) {
      // The last row with these workers has the optimizer with the most work.
      wanted.over_limit[static_cast<size_t>(place)] =
          row.at(to_string(place)).at("over_limit").number(0.1, 1000);
    }
  }
  if (!is_found) {
    list.refuse("no row has " + std::to_string(wanted.workers) +
                " workers; run phub with --workers " + std::to_string(wanted.workers));
  }
}

CostCase case_from(const po::variables_map& options) {
  const auto model = model_by_name(options["model"].as<std::string>());
  if (!model) throw std::runtime_error(model.error().message);
  CostCase wanted{.workers = options["workers"].as<uint32_t>(),
                  .model_bytes = static_cast<double>(element_count(*model) * sizeof(float)),
                  .compute_ms = options["compute-ms"].as<double>()};
  if (wanted.workers < 2 || wanted.workers > kWorkersMax) {
    throw std::runtime_error("--workers is " + std::to_string(wanted.workers) +
                             ": use a number from 2 to " + std::to_string(kWorkersMax));
  }
  if (!(wanted.compute_ms >= 0)) {
    throw std::runtime_error("--compute-ms is " + std::to_string(wanted.compute_ms) +
                             ": use a number of at least 0");
  }
  if (const auto path = options["figures"].as<std::string>(); !path.empty()) {
    read_figures(path, wanted);
  }
  return wanted;
}

double apart_per_price(const Offer& offer) {
  return offer.rate_apart / offer.price * kPricesPerUnit;
}
double overlapped_per_price(const Offer& offer) {
  return offer.rate_overlapped / offer.price * kPricesPerUnit;
}

// Returns this place's offer with the most throughput per price.
std::optional<Offer> best(const std::vector<Offer>& all, BoxPlace place,
                          double (*per_price)(const Offer&)) {
  std::optional<Offer> found;
  for (const Offer& offer : all) {
    if (offer.place == place && (!found || per_price(offer) > per_price(*found))) found = offer;
  }
  return found;
}

nlohmann::json row_of(const Offer& offer) {
  return {{"place", to_string(offer.place)},
          {"gbps", offer.gbps},
          {"boxes", offer.boxes},
          {"price", offer.price},
          {"exchange_ms", offer.exchange_ms},
          {"rate_apart", offer.rate_apart},
          {"rate_overlapped", offer.rate_overlapped},
          {"apart_per_million", apart_per_price(offer)},
          {"overlapped_per_million", overlapped_per_price(offer)}};
}

// Returns the throughput per price of the best central box over that of the best offer of `place`;
// null if there is no offer for one of them.
nlohmann::json gain(const std::vector<Offer>& all, BoxPlace place,
                    double (*per_price)(const Offer&)) {
  const auto central = best(all, BoxPlace::kCentral, per_price);
  const auto other = best(all, place, per_price);
  if (!central || !other) return nullptr;
  return {{"ratio", per_price(*central) / per_price(*other)},
          {"central_gbps", central->gbps},
          {"other_gbps", other->gbps}};
}

void print_gain(const nlohmann::json& figures, const std::string& key, const char* words,
                std::ostream& report) {
  for (const char* place : {"colocated", "sharded"}) {
    const auto& one = figures["gain"][key][place];
    if (one.is_null()) continue;
    report << "  " << words << ": a central box with NICs of " << std::setprecision(0)
           << one["central_gbps"].get<double>() << " Gb/s has " << std::setprecision(2)
           << one["ratio"].get<double>() << " times the throughput per price of " << place
           << " boxes with NICs of " << std::setprecision(0) << one["other_gbps"].get<double>()
           << " Gb/s\n";
  }
}

void print_table(const nlohmann::json& figures, std::ostream& report) {
  report << figures["workers"] << " workers, " << figures["model"].get<std::string>() << ", "
         << figures["compute_ms"] << " ms of computing; prices in "
         << figures["currency"].get<std::string>() << "\n"
         << "                                      exchange   iterations per s   per million\n"
         << "  place      Gb/s  boxes      price         ms   apart overlapped   apart overlapped\n"
         << std::fixed;
  for (const auto& row : figures["rows"]) {
    report << "  " << std::left << std::setw(10) << row["place"].get<std::string>() << std::right
           << std::setprecision(0) << std::setw(5) << row["gbps"].get<double>() << std::setw(7)
           << row["boxes"].get<uint32_t>() << std::setw(11) << row["price"].get<double>()
           << std::setprecision(1) << std::setw(11) << row["exchange_ms"].get<double>()
           << std::setprecision(2) << std::setw(8) << row["rate_apart"].get<double>()
           << std::setw(11) << row["rate_overlapped"].get<double>() << std::setw(8)
           << row["apart_per_million"].get<double>() << std::setw(11)
           << row["overlapped_per_million"].get<double>() << "\n";
  }
  print_gain(figures, "apart", "computing and exchange apart", report);
  print_gain(figures, "overlapped", "computing and exchange overlapped", report);
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  const PriceList prices = price_list_from_file(options["prices"].as<std::string>());
  const CostCase wanted = case_from(options);
  const std::vector<Offer> all = offers(prices, wanted);
  nlohmann::json figures = {
      {"workers", wanted.workers},       {"model", options["model"].as<std::string>()},
      {"compute_ms", wanted.compute_ms}, {"currency", prices.currency},
      {"over_limit", wanted.over_limit}, {"rows", nlohmann::json::array()}};
  for (const Offer& offer : all) figures["rows"].push_back(row_of(offer));
  for (const BoxPlace place : {BoxPlace::kColocated, BoxPlace::kSharded}) {
    figures["gain"]["apart"][to_string(place)] = gain(all, place, apart_per_price);
    figures["gain"]["overlapped"][to_string(place)] = gain(all, place, overlapped_per_price);
  }
  print_table(figures, report);
  return figures;
}

const ScenarioRegistration kRegistration({.name = "cost",
                                          .summary = "throughput per price of a central box, "
                                                     "compared with faster NICs in every worker",
                                          .add_options = add_options,
                                          .run = run});

}  // namespace
}  // namespace pbox::perf::phub_cost
