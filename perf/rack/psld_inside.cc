// Measures moves of chunks between the pipelines of one box: pbox-perf psld --inside. The box has
// two pipelines on two cores. A real-time thread takes most of one of them.
#include "perf/rack/psld_inside.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iomanip>
#include <map>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "perf/rack/job.h"

namespace pbox::perf::rack_psld_inside {
namespace {

using Clock = std::chrono::steady_clock;

// The hog works and rests in turns that are together this long.
constexpr std::chrono::milliseconds kHogTurn{20};

std::vector<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void pin(pthread_t thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  const int error = pthread_setaffinity_np(thread, sizeof(set), &set);
  if (error != 0) throw std::runtime_error(std::string("cannot pin a thread: ") + strerror(error));
}

// Takes all but one in `slow_by` parts of a core from every other program, for its lifetime.
class CoreHog {
 public:
  CoreHog(int core, uint32_t slow_by)
      : rest_(kHogTurn / slow_by), thread_([this] {
          while (!is_over_) {
            const auto until = Clock::now() + kHogTurn - rest_;
            while (Clock::now() < until) {
            }
            std::this_thread::sleep_for(rest_);
          }
        }) {
    pin(thread_.native_handle(), core);
    sched_param priority{};
    priority.sched_priority = 1;
    const int error = pthread_setschedparam(thread_.native_handle(), SCHED_FIFO, &priority);
    if (error == 0) return;
    is_over_ = true;
    thread_.join();
    throw std::runtime_error(std::string("cannot run a thread in real time, as root can: ") +
                             strerror(error));
  }
  ~CoreHog() {
    is_over_ = true;
    thread_.join();
  }
  CoreHog(const CoreHog&) = delete;
  CoreHog& operator=(const CoreHog&) = delete;

 private:
  std::atomic<bool> is_over_ = false;
  std::chrono::microseconds rest_;
  std::thread thread_;
};

class Experiment {
 public:
  explicit Experiment(const Settings& settings)
      : settings_(settings), rack_(options_of(settings)), cores_(usable_cores()) {
    if (cores_.size() < 2) throw std::runtime_error("psld --inside needs two cores");
    const std::string cores = std::to_string(cores_[0]) + "," + std::to_string(cores_[1]);
    for (const bool moves : {false, true}) {
      boxes_.emplace(
          moves,
          rack_.start_box(
              0, {"--pipeline.count=2", "--pipeline.pin=on", "--pipeline.cores=" + cores,
                  "--cluster.rebalance_interval_ms=100", "--control.heartbeat_interval_ms=100",
                  "--pipeline.rebalance=" + std::string(moves ? "true" : "false")}));
    }
    // From here on ranks are started. The hog must take time from a pipeline, not from them.
    pin(pthread_self(), cores_[0]);
  }

  std::vector<double> play(const std::string& name, bool moves, bool is_hogged) {
    RackJob ranks(rack_, {.box = boxes_.at(moves).control,
                          .job = name,
                          .model = settings_.model,
                          .scale = settings_.scale,
                          .recovers = true});
    ranks.play(3, settings_.compute_ms);
    std::optional<CoreHog> hog;
    if (is_hogged) hog.emplace(cores_[1], settings_.slow_by);
    const auto run = ranks.play(settings_.iterations, settings_.compute_ms);
    ranks.finish();
    return run.iteration_ms;
  }

 private:
  static RackOptions options_of(const Settings& settings) {
    const auto rate = static_cast<uint64_t>(settings.megabits * 1e6);
    return balanced_rack(settings.workers, 9000, {.bits_per_second = rate});
  }

  Settings settings_;
  Rack rack_;
  std::vector<int> cores_;
  std::map<bool, RackBox> boxes_;  // by whether chunks move
};

nlohmann::json measure(Experiment& experiment, const Settings& settings, const std::string& name,
                       bool is_hogged) {
  std::vector<double> still, moving, last_third;
  for (uint32_t turn = 0; turn < settings.turns; ++turn) {
    const std::string number = std::to_string(turn);
    const auto stays = experiment.play(name + ".static" + number, false, is_hogged);
    const auto moves = experiment.play(name + ".psld" + number, true, is_hogged);
    still.insert(still.end(), stays.begin(), stays.end());
    moving.insert(moving.end(), moves.begin(), moves.end());
    const auto rest = moves.begin() + static_cast<ptrdiff_t>(moves.size() * 2 / 3);
    last_third.insert(last_third.end(), rest, moves.end());
  }
  return {{"name", name},
          {"iteration_ms",
           {{"static", mean_ms(still)},
            {"psld", mean_ms(moving)},
            {"psld_last_third", mean_ms(last_third)}}},
          {"speedup_over_static", mean_ms(still) / mean_ms(moving)},
          {"speedup_over_static_last_third", mean_ms(still) / mean_ms(last_third)}};
}

}  // namespace

nlohmann::json run(const Settings& settings, std::ostream& report) {
  Experiment experiment(settings);
  nlohmann::json list = nlohmann::json::array();
  for (const bool is_hogged : {false, true}) {
    const std::string name = is_hogged ? "core_hog" : "none";
    if (!settings.only.empty() && settings.only != name) continue;
    report << "\r  " << name << "                " << std::flush;
    list.push_back(measure(experiment, settings, name, is_hogged));
  }
  report << "\r";
  if (list.empty()) {
    throw std::runtime_error("--setting '" + settings.only +
                             "' is unknown; with --inside use none or core_hog");
  }
  report << "                   ms per iteration        speedup over static\n"
         << "setting       static    psld  last third    whole  last third\n"
         << std::fixed;
  for (const auto& setting : list) {
    const auto& ms = setting["iteration_ms"];
    report << std::left << std::setw(12) << setting["name"].get<std::string>() << std::right
           << std::setprecision(0) << std::setw(8) << ms["static"].get<double>() << std::setw(8)
           << ms["psld"].get<double>() << std::setw(12) << ms["psld_last_third"].get<double>()
           << std::setprecision(2) << std::setw(9) << setting["speedup_over_static"].get<double>()
           << std::setw(12) << setting["speedup_over_static_last_third"].get<double>() << "\n";
  }
  return {{"model", settings.model},     {"scale", settings.scale},
          {"workers", settings.workers}, {"worker_megabits", settings.megabits},
          {"slow_by", settings.slow_by}, {"settings", std::move(list)}};
}

}  // namespace pbox::perf::rack_psld_inside
