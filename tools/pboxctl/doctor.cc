// pboxctl doctor: finds out, check by check, why a box and its workers exchange nothing.
#include <signal.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "tools/pboxctl/box_config.h"
#include "tools/pboxctl/commands.h"
#include "tools/pboxctl/doctor_checks.h"
#include "tools/pboxctl/doctor_host.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;

constexpr uint32_t kSecondsMax = 600;

options::options_description doctor_options() {
  options::options_description description("Options");
  const auto text = [](const char* name) {
    return options::value<std::string>()->value_name(name);
  };
  const std::string config_help = std::string("on a box: the configuration to check; default ") +
                                  pbox::config::kDefaultPath + " if it exists";
  description.add_options()("to", text("BOX[:PORT]"),
                            "on a worker host: name or address of the box to check");
  description.add_options()("config", text("FILE"), config_help.c_str());
  description.add_options()("seconds",
                            options::value<uint32_t>()->value_name("N")->default_value(2),
                            "duration of the exchange at full speed, in seconds, 1 to 600");
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

// Parses "BOX", "BOX:PORT", "[V6]", "[V6]:PORT" or a bare IPv6 address. Returns nothing for other
// texts.
std::optional<BoxPath> parse_box(const std::string& text) {
  BoxPath path;
  std::string port;
  const size_t bracket = text.find(']');
  const size_t colon = text.rfind(':');
  if (text.starts_with('[') && bracket != std::string::npos) {
    path.host = text.substr(1, bracket - 1);
    port = text.substr(bracket + 1);
    if (!port.empty() && port.front() != ':') return std::nullopt;
  } else if (colon != std::string::npos && text.find(':') == colon) {
    path.host = text.substr(0, colon);
    port = text.substr(colon);
  } else {
    path.host = text;
  }
  if (path.host.empty()) return std::nullopt;
  if (port.empty()) return path;
  const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), path.port);
  if (error != std::errc() || end != port.data() + port.size() || path.port == 0) {
    return std::nullopt;
  }
  return path;
}

void heed_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second signal ends the program at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int finish(Report& report) {
  if (stop_requested) {
    report.fail("doctor", "interrupted: the checks that are not listed above did not run",
                "run pboxctl doctor again");
  }
  return report.finish();
}

int ask_box(const std::string& box, const Words& settings, uint32_t seconds, Report& report) {
  if (!settings.empty()) {
    return complain("doctor", "'" + settings.front() +
                                  "' is a setting of a box, which doctor --to does not use; give "
                                  "settings to doctor on the box");
  }
  auto path = parse_box(box);
  if (!path) return complain("doctor", "--to = '" + box + "' must be BOX, BOX:PORT or [IPV6]:PORT");
  path->seconds = seconds;
  report.say("Checking the box at " + box +
             " with small jobs of one worker, doctor-..., one at a time. Running jobs continue.");
  const char* keys = std::getenv("PBOX_KEYS");
  if (use_keys(keys == nullptr ? "" : keys, *path, report)) check_box(*path, report);
  return finish(report);
}

int ask_host(const std::string& file, const Words& settings, uint32_t seconds, Report& report) {
  const auto outcome = read_config(file, settings);
  for (const auto& error : outcome.errors) std::cerr << "pboxctl: " << error << '\n';
  if (!outcome.config) return kUsage;
  check_host(*outcome.config, seconds, report);
  return finish(report);
}

int doctor(const options::variables_map& given, const Words& settings) {
  const auto seconds = given["seconds"].as<uint32_t>();
  if (seconds == 0 || seconds > kSecondsMax) {
    return complain("doctor", "--seconds = " + std::to_string(seconds) + " must be from 1 to " +
                                  std::to_string(kSecondsMax));
  }
  const auto text = [&](const char* name) {
    return given.contains(name) ? given[name].as<std::string>() : std::string();
  };
  if (given.contains("to") && given.contains("config")) {
    return complain("doctor", "give --to on a worker host or --config on the box, not both");
  }
  heed_signals();
  Report report(wants_json(given) ? Report::Format::kJson : Report::Format::kText, std::cout,
                std::cerr);
  return given.contains("to") ? ask_box(text("to"), settings, seconds, report)
                              : ask_host(text("config"), settings, seconds, report);
}

}  // namespace

void check_box(BoxPath path, Report& report) {
  const auto on = [&](bool go_on) { return go_on && !stop_requested; };
  if (!on(check_route(path, report)) || !on(check_join(path, report))) return;
  if (!on(check_data(path, report))) return;
  const bool full_packets_pass = check_mtu(path, report);
  if (stop_requested) return;
  const bool all_answer = std::count(path.silent.begin(), path.silent.end(), true) == 0;
  if (!full_packets_pass || !all_answer) {
    report.say("Loss and sums were not checked. Fix what failed, and run this again.");
    return;
  }
  if (on(check_loss(path, report))) check_sums(path, report);
}

const Command kDoctor = {
    "doctor",
    "[--to BOX[:PORT]] [options] [--section.key=value ...]",
    "find out why workers and a box do not exchange gradients, and what to do",
    "Finds out why workers and a box do not exchange gradients, and prints a remedy for each "
    "fault.\nWith --to, on a worker host: checks name, route, ports, MTU, loss and sums between "
    "this "
    "host and\nthe box. It exchanges small jobs of its own; running jobs continue. Without --to, "
    "on "
    "the box:\nchecks the machine and its configuration, then the same as above with the running "
    "pboxd, or with\none that it starts and stops. With --output json, progress goes to standard "
    "error.",
    doctor_options,
    doctor,
    Command::More::kSettings};

}  // namespace pboxctl
