#include <algorithm>
#include <boost/program_options.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <thread>

#include "tools/pboxctl/admin_client.h"
#include "tools/pboxctl/trace_events.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

options::options_description trace_options() {
  options::options_description description("Options");
  add_admin_option(description);
  description.add_options()("seconds", options::value<double>()->default_value(2)->value_name("N"),
                            "how long the box records");
  description.add_options()("output,o", options::value<std::string>()->value_name("FILE"),
                            "where the trace goes; without: to standard output");
  description.add_options()("help,h", "print this text");
  return description;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void print_summary(const Json& trace, const TracePage& made) {
  std::printf(
      "%llu rounds of chunks; from the first fragment to the sum, from there to the last "
      "rank:\n%-10s %10s %12s %12s\n",
      static_cast<unsigned long long>(made.rounds), "PRIORITY", "ROUNDS", "AGGREGATE", "SEND");
  for (auto at = made.by_priority.rbegin(); at != made.by_priority.rend(); ++at) {
    std::printf("%-10lld %10zu %12s %12s\n", static_cast<long long>(at->first),
                at->second.send_s.size(), in_time(median(at->second.aggregate_s)).c_str(),
                in_time(median(at->second.send_s)).c_str());
  }
  const double lost = number_of(trace, "lost_events");
  if (lost > 0) {
    std::printf("there was no room for the last %.0f events: record for a shorter time\n", lost);
  }
}

int trace(const options::variables_map& given, const Words& more) {
  if (more.empty()) return complain("trace", "name the job, as `pboxctl jobs` lists it");
  const auto seconds = given["seconds"].as<double>();
  const std::string path = "/api/v1/jobs/" + in_path(more[0]) + "/trace";
  const auto begun =
      post(given["admin"].as<std::string>(), path, Json{{"seconds", seconds}}.dump());
  if (!begun) {
    std::cerr << "pboxctl: " << begun.error().message << '\n';
    return kFailed;
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const auto recorded = fetch(given, path);
  if (!recorded) return kFailed;
  TracePage made;
  try {
    made = make_trace_page(*recorded);
  } catch (const Json::exception& error) {
    std::cerr << "pboxctl: that is no trace: " << error.what() << "; is pboxd of this release?\n";
    return kFailed;
  }
  if (!given.contains("output")) {
    std::cout << made.page.dump() << '\n';
    return kDone;
  }
  const auto& file = given["output"].as<std::string>();
  std::ofstream out(file);
  out << made.page.dump() << '\n';
  out.close();
  if (!out) {
    std::cerr << "pboxctl: cannot write '" << file << "'\n";
    return kFailed;
  }
  print_summary(*recorded, made);
  return kDone;
}

}  // namespace

const Command kTrace = {
    "trace",
    "JOB [options]",
    "record when a job's chunks come and go, for Perfetto",
    "Has a box record, for some seconds, when each chunk's rounds began to come from each rank, "
    "when\nthey were summed, and when the result had left. The page that is made of it is for "
    "ui.perfetto.dev\nand chrome://tracing. With --output the median times by priority are printed "
    "too. Of jobs whose\nmodel is bsp; one trace at a time on a box.",
    trace_options,
    trace,
    Command::More::kJob};

}  // namespace pboxctl
