// The part of the scenario psld that is about the pipelines of one box.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace pbox::perf::rack_psld_inside {

struct Settings {
  std::string model, only;  // `only`: a setting; empty: all
  uint32_t workers = 2, scale = 20, iterations = 150, slow_by = 4, turns = 3;
  double megabits = 400, compute_ms = 20;
};

// Compares a job whose chunks move between the two pipelines of a box with one whose chunks stay.
// Throws std::runtime_error.
nlohmann::json run(const Settings& settings, std::ostream& report);

}  // namespace pbox::perf::rack_psld_inside
