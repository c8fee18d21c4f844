#include <algorithm>
#include <boost/program_options.hpp>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>

#include "tools/pboxctl/admin_client.h"
#include "tools/pboxctl/flight_compare.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;
using pbox::pipeline::Verdict;

// Largest number of open rounds that the text shows. JSON has all of them.
constexpr size_t kOpenRoundsShown = 10;

options::options_description replay_options() {
  options::options_description description("Options");
  add_output_option(description);
  description.add_options()(
      "against", options::value<std::string>()->value_name("FILE"),
      "compare the results with those in the record FILE of a run that should be identical")(
      "help,h", "print this text");
  return description;
}

pbox::Result<std::vector<pbox::pipeline::FlightImage>> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  if (!file) {
    return pbox::Error{pbox::ErrorCode::kNotFound, "cannot read '" + path + "'"};
  }
  auto images = pbox::pipeline::read_flight_images(std::as_bytes(std::span(bytes)));
  if (images) return images;
  return pbox::Error{images.error().code, "'" + path + "': " + images.error().message};
}

Json verdicts_json(const PipelineReplay& pipeline) {
  Json verdicts = Json::object();
  for (size_t index = 0; index < pipeline.verdicts.size(); ++index) {
    if (pipeline.verdicts[index] == 0) continue;
    verdicts[to_string(static_cast<Verdict>(index))] = pipeline.verdicts[index];
  }
  return verdicts;
}

Json pipeline_json(const PipelineReplay& pipeline) {
  return {{"pipeline", pipeline.index},
          {"first_record", pipeline.first},
          {"records", pipeline.records},
          {"begun_unix_seconds", static_cast<double>(pipeline.begun_unix_ns) / 1e9},
          {"seconds", static_cast<double>(pipeline.lasted_ns) / 1e9},
          {"packets", verdicts_json(pipeline)},
          {"judged", pipeline.judged},
          {"too_early", pipeline.too_early},
          {"of_other_models", pipeline.other_models},
          {"damaged_records", pipeline.damaged},
          {"interrupted", pipeline.interrupted}};
}

Json job_json(const std::string& name, const JobReplay& job) {
  Json ranks = Json::array(), open = Json::array();
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankReplay& counts = job.ranks[rank];
    ranks.push_back({{"rank", rank},
                     {"present", counts.present},
                     {"fragments", counts.fragments},
                     {"duplicates", counts.duplicates},
                     {"pulls", counts.pulls},
                     {"refused", counts.refused},
                     {"last", counts.last}});
  }
  for (const OpenRound& round : job.open_rounds) {
    open.push_back({{"pipeline", round.pipeline},
                    {"chunk", round.chunk},
                    {"round", round.round},
                    {"missing_ranks", round.missing}});
  }
  return {{"job", name},
          {"model", job.model},
          {"chunk_rounds", job.chunk_rounds},
          {"rounds", job.newest_round},
          {"results_digested", job.results.size()},
          {"ranks", ranks},
          {"open_rounds", open}};
}

Json to_json(const FlightReplay& replay) {
  Json pipelines = Json::array(), jobs = Json::array(), differences = Json::array();
  for (const PipelineReplay& pipeline : replay.pipelines) {
    pipelines.push_back(pipeline_json(pipeline));
  }
  for (const auto& [name, job] : replay.jobs) jobs.push_back(job_json(name, job));
  for (const Difference& difference : replay.differences) {
    differences.push_back({{"pipeline", difference.pipeline},
                           {"record", difference.record},
                           {"text", difference.text}});
  }
  return {{"pipelines", pipelines},
          {"jobs", jobs},
          {"difference_count", replay.difference_count},
          {"differences", differences}};
}

Json compared_json(const std::vector<ResultsCompared>& jobs) {
  Json list = Json::array();
  for (const ResultsCompared& compared : jobs) {
    Json job = {{"job", compared.job},
                {"results_in_both", compared.in_both},
                {"results_different", compared.different}};
    if (compared.different > 0) {
      job["first"] = {{"round", compared.first.round},
                      {"part", compared.first.part},
                      {"chunk", compared.first.chunk}};
    }
    list.push_back(std::move(job));
  }
  return list;
}

std::string wall_time(uint64_t unix_ns) {
  const auto seconds = static_cast<time_t>(unix_ns / 1'000'000'000);
  tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

void print_pipeline(const PipelineReplay& pipeline) {
  std::printf("pipeline %u: %llu records", pipeline.index,
              static_cast<unsigned long long>(pipeline.records));
  if (pipeline.records > 0) {
    std::printf(", beginning at %s UTC, over %s", wall_time(pipeline.begun_unix_ns).c_str(),
                in_time(static_cast<double>(pipeline.lasted_ns) / 1e9).c_str());
  }
  const char* gap = "\n  packets: ";
  const Json verdicts = verdicts_json(pipeline);
  for (const auto& [verdict, count] : verdicts.items()) {
    std::printf("%s%s %s", gap, count.dump().c_str(), verdict.c_str());
    gap = ", ";
  }
  std::printf("\n  %llu of them were replayed", static_cast<unsigned long long>(pipeline.judged));
  const auto also = [](uint64_t count, const char* what) {
    if (count > 0) std::printf("; %llu %s", static_cast<unsigned long long>(count), what);
  };
  also(pipeline.too_early, "are of chunks whose state is not in the records");
  also(pipeline.other_models, "are of jobs whose model is not bsp");
  also(pipeline.damaged, "records are damaged");
  std::printf("\n");
  if (!pipeline.interrupted.empty()) {
    std::printf("  the records end in the middle of %s\n", pipeline.interrupted.c_str());
  }
}

std::string ranks_text(const std::vector<uint32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const uint32_t rank : ranks) text.append(" ").append(std::to_string(rank));
  return ranks.empty() ? "no rank" : text;
}

void print_job(const std::string& name, const JobReplay& job) {
  std::printf("\njob '%s' (%s): %llu chunk rounds finished, the newest is round ", name.c_str(),
              job.model.c_str(), static_cast<unsigned long long>(job.chunk_rounds));
  std::printf("%s\n", job.newest_round == 0 ? "-" : std::to_string(job.newest_round - 1).c_str());
  std::printf("  %-6s %12s %12s %10s %10s %10s\n", "RANK", "FRAGMENTS", "DUPLICATES", "PULLS",
              "REFUSED", "LAST");
  for (size_t rank = 0; rank < job.ranks.size(); ++rank) {
    const RankReplay& counts = job.ranks[rank];
    std::printf("  %-6zu %12llu %12llu %10llu %10llu %10llu%s\n", rank,
                static_cast<unsigned long long>(counts.fragments),
                static_cast<unsigned long long>(counts.duplicates),
                static_cast<unsigned long long>(counts.pulls),
                static_cast<unsigned long long>(counts.refused),
                static_cast<unsigned long long>(counts.last),
                counts.present ? "" : "  not a member");
  }
  std::printf("  %zu rounds of chunks were open at the end\n", job.open_rounds.size());
  for (size_t index = 0; index < job.open_rounds.size(); ++index) {
    if (index == kOpenRoundsShown) {
      std::printf("    and more; --output json lists all\n");
      break;
    }
    const OpenRound& open = job.open_rounds[index];
    std::printf("    chunk %u, round %llu: lacks %s\n", open.chunk,
                static_cast<unsigned long long>(open.round), ranks_text(open.missing).c_str());
  }
}

void print_text(const FlightReplay& replay) {
  for (const PipelineReplay& pipeline : replay.pipelines) print_pipeline(pipeline);
  for (const auto& [name, job] : replay.jobs) print_job(name, job);
  if (replay.difference_count == 0) return;
  std::printf("\n%llu differences between the records and the replay:\n",
              static_cast<unsigned long long>(replay.difference_count));
  for (const Difference& difference : replay.differences) {
    std::printf("  pipeline %u, record %llu: %s\n", difference.pipeline,
                static_cast<unsigned long long>(difference.record), difference.text.c_str());
  }
}

void print_compared(const std::vector<ResultsCompared>& jobs, const std::string& other) {
  std::printf("\nagainst %s:\n", other.c_str());
  if (jobs.empty()) std::printf("  no job is in both files\n");
  for (const ResultsCompared& compared : jobs) {
    std::printf("  job '%s': %llu results are in both files, and %llu of them differ",
                compared.job.c_str(), static_cast<unsigned long long>(compared.in_both),
                static_cast<unsigned long long>(compared.different));
    if (compared.different > 0) {
      std::printf("; the first is of round %u, part %u, chunk %u", compared.first.round,
                  compared.first.part, compared.first.chunk);
    }
    std::printf("\n");
  }
}

int run_replay(const options::variables_map& given, const Words& more) {
  if (more.empty()) return complain("replay", "name a file, as `pboxctl recorder` writes it");
  const bool as_json = wants_json(given);
  const bool compares = given.contains("against");
  std::vector<FlightReplay> replays;
  for (const std::string& path :
       {more[0], compares ? given["against"].as<std::string>() : std::string()}) {
    if (path.empty()) continue;
    const auto images = read_file(path);
    if (!images) {
      std::cerr << "pboxctl: " << images.error().message << '\n';
      return kFailed;
    }
    replays.push_back(replay(*images));
  }
  std::vector<ResultsCompared> compared;
  if (compares) compared = compare_results(replays[0], replays[1]);
  if (as_json) {
    Json answer = to_json(replays[0]);
    if (compares) answer["compared"] = compared_json(compared);
    std::cout << answer.dump(2, ' ', false, Json::error_handler_t::replace) << '\n';
  } else {
    print_text(replays[0]);
    if (compares) print_compared(compared, given["against"].as<std::string>());
  }
  const bool is_same = std::all_of(compared.begin(), compared.end(),
                                   [](const ResultsCompared& job) { return job.different == 0; });
  return is_same && replays[0].difference_count == 0 ? kDone : kDifferent;
}

}  // namespace

const Command kReplay = {
    "replay",
    "FILE [options]",
    "show what a box's pipelines did, from a flight recorder's file",
    "Reads a flight recorder's file and replays it through the pipelines' own code, without"
    "\npayloads. The file comes from `pboxctl recorder`, or from the box's recorder.directory"
    "\n(late-TIME.flight, crash-TIME.flight). Shows for each job how many rounds ended, which rank"
    "\nwas the last, what was refused and why, and which rounds were open at the end, with the "
    "ranks"
    "\nthat they lack. Reports each verdict that differs from the recorded one, with exit status 3."
    "\nReplays rounds of jobs whose model is bsp; counts the packets of other jobs."
    "\nThe file has a digest of a piece of each result. --against compares these digests with those"
    "\nin another file for jobs of the same name, and shows the first round in which they differ, "
    "with"
    "\nexit status 3. Compare two runs that should be identical to the last bit (numerics "
    "ordered), or"
    "\ntwo boxes on which the job ran.",
    replay_options,
    run_replay,
    Command::More::kFile};

}  // namespace pboxctl
