#include "tools/pboxctl/flight_compare.h"

namespace pboxctl {
namespace {

ResultsCompared compare(const std::string& job, const JobReplay& one, const JobReplay& other) {
  ResultsCompared compared{.job = job, .first = {}};
  for (const auto& [key, result] : one.results) {
    const auto found = other.results.find(key);
    if (found == other.results.end()) continue;
    const ResultDigest& theirs = found->second;
    if (theirs.piece != result.piece || theirs.bytes != result.bytes) continue;
    ++compared.in_both;
    if (theirs.digest == result.digest) continue;
    const bool is_first = compared.different++ == 0 ||
                          pbox::wire::round_distance(key.round, compared.first.round) < 0;
    if (is_first) compared.first = key;
  }
  return compared;
}

}  // namespace

std::vector<ResultsCompared> compare_results(const FlightReplay& one, const FlightReplay& other) {
  std::vector<ResultsCompared> jobs;
  for (const auto& [name, job] : one.jobs) {
    const auto found = other.jobs.find(name);
    if (found != other.jobs.end()) jobs.push_back(compare(name, job, found->second));
  }
  return jobs;
}

}  // namespace pboxctl
