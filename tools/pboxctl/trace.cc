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
                            "duration of the recording, in seconds");
  description.add_options()("output,o", options::value<std::string>()->value_name("FILE"),
                            "file for the trace; default: standard output");
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
      "%llu rounds of chunks. AGGREGATE: from the first fragment to the sum. SEND: from there "
      "until "
      "the\nresult has left for all ranks. Medians by priority:\n%-10s %10s %12s %12s\n",
      static_cast<unsigned long long>(made.rounds), "PRIORITY", "ROUNDS", "AGGREGATE", "SEND");
  for (auto at = made.by_priority.rbegin(); at != made.by_priority.rend(); ++at) {
    std::printf("%-10lld %10zu %12s %12s\n", static_cast<long long>(at->first),
                at->second.send_s.size(), in_time(median(at->second.aggregate_s)).c_str(),
                in_time(median(at->second.send_s)).c_str());
  }
  const double lost = number_of(trace, "lost_events");
  if (lost > 0) {
    std::printf("the last %.0f events did not fit into the recording; record for a shorter time\n",
                lost);
  }
}

int trace(const options::variables_map& given, const Words& more) {
  if (more.empty()) return complain("trace", "name the job, as `pboxctl jobs` lists it");
  const auto seconds = given["seconds"].as<double>();
  const std::string path = "/api/v1/jobs/" + in_path(more[0]) + "/trace";
  const auto begun = post(given, path, Json{{"seconds", seconds}}.dump());
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
    std::cerr << "pboxctl: the box's answer is not a trace: " << error.what()
              << "; use pboxctl of the box's release (pboxctl version --admin shows both)\n";
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
    "record when a job's chunks arrive and leave, for Perfetto",
    "Records for some seconds when each round of each chunk began to arrive from each rank, when "
    "it "
    "was\nsummed, and when its result had left. Open the trace in ui.perfetto.dev or "
    "chrome://tracing. With\n--output, also prints median times by priority. The job's model must "
    "be bsp. A box records one trace\nat a time.",
    trace_options,
    trace,
    Command::More::kJob};

}  // namespace pboxctl
