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

std::string median_time(const std::vector<double>& durations_s) {
  return durations_s.empty() ? "-" : in_time(median(durations_s));
}

void print_priorities(const TracePage& made) {
  std::printf(
      "AGGREGATE: from the first fragment to the sum. SEND: from there until the result has left "
      "for\nall ranks. Medians by priority:\n%-10s %10s %12s %12s\n",
      "PRIORITY", "ROUNDS", "AGGREGATE", "SEND");
  for (auto at = made.by_priority.rbegin(); at != made.by_priority.rend(); ++at) {
    std::printf("%-10lld %10zu %12s %12s\n", static_cast<long long>(at->first),
                at->second.send_s.size(), median_time(at->second.aggregate_s).c_str(),
                median_time(at->second.send_s).c_str());
  }
}

void print_ranks(const TracePage& made) {
  std::printf(
      "PUSH: from a rank's first fragment to its last. WAIT: until slower ranks had caught up, in "
      "as many\nrounds as WAITED says. REPLY: from then until the reply had left. Medians by "
      "rank:\n%-10s %10s %12s %10s %12s %12s\n",
      "RANK", "PUSHES", "PUSH", "WAITED", "WAIT", "REPLY");
  for (const auto& [rank, times] : made.by_rank) {
    std::printf("%-10u %10zu %12s %10zu %12s %12s\n", rank, times.push_s.size(),
                median_time(times.push_s).c_str(), times.wait_s.size(),
                median_time(times.wait_s).c_str(), median_time(times.reply_s).c_str());
  }
}

void print_summary(const Json& trace, const TracePage& made) {
  std::printf("%llu rounds of chunks.\n", static_cast<unsigned long long>(made.rounds));
  if (!made.by_priority.empty() || made.by_rank.empty()) print_priorities(made);
  if (!made.by_rank.empty()) print_ranks(made);
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
    "it was\nsummed, and when its result had left. With models in which ranks have rounds of their "
    "own, records\neach rank's push, its wait for slower ranks, and its reply. Open the trace in "
    "ui.perfetto.dev or\nchrome://tracing. With --output, also prints median times, by priority or "
    "by rank. A box records one\ntrace at a time.",
    trace_options,
    trace,
    Command::More::kJob};

}  // namespace pboxctl
