// Scenario `learners`: DiLoCo across long cables, first undisturbed, then while one learner is
// stopped for a minute and another one is killed and comes back. It reports how fast the others
// train on, and the loss of the final model on the test data. The learners are
// docs/examples/characters.py on a shaped rack.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <iomanip>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "perf/python.h"
#include "perf/rack/rack.h"
#include "perf/scenario.h"

namespace pbox::perf::torch_learners {
namespace {

constexpr uint32_t kMtu = 1500;
constexpr int kLineMs = 10 * 60 * 1000;
constexpr uint32_t kStopped = 1, kKilled = 2;  // learners that something happens to
constexpr auto kAway = std::chrono::seconds(10);
// A silent learner counts as lost after two seconds. It then has two more seconds to come back, by
// the example's lost_timeout_ms. The others wait for it no longer than that.
const std::vector<std::string> kSilence = {"--control.heartbeat_interval_ms=500",
                                           "--control.worker_dead_after_ms=2000"};

struct Settings {
  std::string python, wire;
  uint32_t learners, steps, stop_s;
  uint32_t quorum;  // 0: all
  double step_ms;
};

// The last figures that a learner has printed.
struct Course {
  double seconds = 0;  // from its first step to its last
  double test_loss = 0;
};

class Learner {
 public:
  Learner(const Rack& rack, const RackBox& box, const Settings& settings, const std::string& job,
          uint32_t rank, uint32_t of, uint32_t seed)
      : rack_(rack),
        rank_(rank),
        command_({"env", "PBOX_BOX=" + box.control, std::string("PYTHONPATH=") + PBOX_PYTHON_FOLDER,
                  settings.python, std::string(PBOX_EXAMPLES_FOLDER) + "/characters.py", "--job",
                  job, "--rank", std::to_string(rank), "--world-size", std::to_string(of), "--seed",
                  std::to_string(seed), "--steps", std::to_string(settings.steps), "--step-ms",
                  std::to_string(settings.step_ms)}) {
    if (!settings.wire.empty()) command_.insert(command_.end(), {"--wire", settings.wire});
    if (settings.quorum > 0 && of > 1) {
      command_.insert(command_.end(), {"--quorum", std::to_string(settings.quorum)});
    }
    program_ = rack_.run(rack_.worker(rank_), command_);
  }

  // Follows the learner until it has taken `step` steps.
  void await_step(uint32_t step) {
    while (step_ < step) read();
  }
  void stop_for(uint32_t seconds) {
    kill(program_->pid(), SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(seconds));
    kill(program_->pid(), SIGCONT);
  }
  // Kills it, and starts it again after a while.
  void die_and_return() {
    kill(program_->pid(), SIGKILL);
    std::this_thread::sleep_for(kAway);
    std::vector<std::string> command = command_;
    command.emplace_back("--rejoin");
    program_ = rack_.run(rack_.worker(rank_), command);
  }
  Course finish() {
    while (!is_done_) read();
    program_->finish();
    return course_;
  }

 private:
  void read() {
    std::istringstream line(program_->read_line(kLineMs));
    std::string word, name;
    line >> word;
    if (word == "step") {
      line >> step_ >> name >> name >> name >> course_.seconds;
    } else if (word == "test") {
      line >> name >> course_.test_loss;
      is_done_ = true;
    }
  }

  const Rack& rack_;
  uint32_t rank_;
  std::vector<std::string> command_;
  std::unique_ptr<Program> program_;
  uint32_t step_ = 0;
  bool is_done_ = false;
  Course course_;
};

// Lets the learners train. Returns the courses of those that nothing happens to.
std::vector<Course> train(const Rack& rack, const RackBox& box, const Settings& settings,
                          uint32_t learners, uint32_t seed, bool disturbed) {
  const std::string job = "learners-" + std::to_string(learners) + "-" + std::to_string(seed) +
                          (disturbed ? "-disturbed" : "");
  std::vector<Course> courses(learners);
  std::vector<std::exception_ptr> failures(learners);
  std::vector<std::unique_ptr<Learner>> started;
  for (uint32_t rank = 0; rank < learners; ++rank) {
    started.push_back(std::make_unique<Learner>(rack, box, settings, job, rank, learners, seed));
  }
  {
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < learners; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          Learner& learner = *started[rank];
          if (disturbed && rank == kStopped) {
            learner.await_step(settings.steps / 5);
            learner.stop_for(settings.stop_s);
          } else if (disturbed && rank == kKilled) {
            learner.await_step(settings.steps * 2 / 5);
            learner.die_and_return();
          }
          courses[rank] = learner.finish();
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  if (disturbed) courses.erase(courses.begin() + kStopped, courses.begin() + kKilled + 1);
  return courses;
}

double slowest_s(const std::vector<Course>& courses) {
  return std::max_element(courses.begin(), courses.end(),
                          [](const Course& a, const Course& b) { return a.seconds < b.seconds; })
      ->seconds;
}

void add_options(po::options_description& options) {
  add_python_option(options);
  options.add_options()("learners", po::value<uint32_t>()->default_value(4),
                        "number of learners, each on its own machine; 4 or more")(
      "seeds", po::value<uint32_t>()->default_value(3),
      "number of trainings, each with its own seed")(
      "steps", po::value<uint32_t>()->default_value(480), "steps of each training, 120 or more")(
      "step-ms", po::value<double>()->default_value(400), "minimum time of a step")(
      "stop-s", po::value<uint32_t>()->default_value(60), "how long a learner is stopped")(
      "wire", po::value<std::string>()->default_value("q8"),
      "form in which changes are sent: f32, q8 or q4")(
      "quorum", po::value<uint32_t>()->default_value(0),
      "number of learners that an outer step waits for; 0: all that are present")(
      "rate-mbit", po::value<uint32_t>()->default_value(100),
      "rate of a learner's cable, in Mbit/s of Ethernet frames")(
      "delay-us", po::value<uint32_t>()->default_value(50'000),
      "delay of each learner's cable in each direction");
}

nlohmann::json run(const po::variables_map& options, std::ostream& report) {
  if (options["learners"].as<uint32_t>() < 4)
    throw std::runtime_error("--learners must be 4 or more");
  if (options["steps"].as<uint32_t>() < 120)
    throw std::runtime_error("--steps must be 120 or more");
  const Settings settings{.python = python_of(options),
                          .wire = options["wire"].as<std::string>(),
                          .learners = options["learners"].as<uint32_t>(),
                          .steps = options["steps"].as<uint32_t>(),
                          .stop_s = options["stop-s"].as<uint32_t>(),
                          .quorum = options["quorum"].as<uint32_t>(),
                          .step_ms = options["step-ms"].as<double>()};
  Rack rack(
      balanced_rack(settings.learners, kMtu,
                    {.bits_per_second = uint64_t{options["rate-mbit"].as<uint32_t>()} * 1'000'000,
                     .delay_us = options["delay-us"].as<uint32_t>()}));
  const RackBox box = rack.start_box(0, kSilence);
  const double lone_s = slowest_s(train(rack, box, settings, 1, 0, false));
  report << "one learner alone: " << std::fixed << std::setprecision(1) << lone_s << " s\n"
         << "seed  learners                      speed, of the lone one's  test loss\n";
  nlohmann::json figures = {{"lone_s", lone_s}};
  for (uint32_t seed = 1; seed <= std::max(1u, options["seeds"].as<uint32_t>()); ++seed) {
    for (const bool disturbed : {false, true}) {
      const auto courses = train(rack, box, settings, settings.learners, seed, disturbed);
      const char* name = disturbed ? "one stopped, one killed" : "undisturbed";
      const double speed = lone_s / slowest_s(courses);
      report << std::setw(4) << seed << "  " << std::left << std::setw(24) << name << std::right
             << std::setprecision(3) << std::setw(31) << speed << std::setprecision(4)
             << std::setw(11) << courses[0].test_loss << "\n"
             << std::flush;
      figures["trainings"].push_back({{"seed", seed},
                                      {"disturbed", disturbed},
                                      {"speed", speed},
                                      {"test_loss", courses[0].test_loss}});
    }
  }
  return figures;
}

const ScenarioRegistration kRegistration(
    {.name = "learners",
     .summary = "DiLoCo across long cables while learners are stopped and killed",
     .add_options = add_options,
     .run = run});

}  // namespace
}  // namespace pbox::perf::torch_learners
