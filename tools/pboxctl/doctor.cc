// pboxctl doctor: why it starts and sends nothing, asked and answered check by check.
#include <signal.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
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
  const std::string config_help = std::string("on the box: its configuration; otherwise ") +
                                  pbox::config::kDefaultPath + " if it exists";
  description.add_options()("to", text("BOX[:PORT]"),
                            "on a worker host: the box to ask, by name or address");
  description.add_options()("config", text("FILE"), config_help.c_str());
  description.add_options()("seconds",
                            options::value<uint32_t>()->value_name("N")->default_value(2),
                            "how long to exchange at full speed, 1 to 600");
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

// "BOX", "BOX:PORT", "[V6]", "[V6]:PORT" or a bare IPv6 address; nothing if it is none of them.
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
  action.sa_flags = static_cast<int>(SA_RESETHAND);  // a second one ends it at once
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int finish(Report& report) {
  if (stop_requested) {
    report.fail("doctor", "interrupted: what is missing above was not checked", "run it again");
  }
  return report.finish();
}

int ask_box(const std::string& box, const Words& settings, uint32_t seconds, Report& report) {
  if (!settings.empty()) {
    return complain(
        "doctor", "'" + settings.front() +
                      "' is no option of doctor --to: settings of a box are for doctor on the box");
  }
  auto path = parse_box(box);
  if (!path) return complain("doctor", "--to = '" + box + "' must be BOX, BOX:PORT or [IPV6]:PORT");
  path->seconds = seconds;
  report.say("Asking the box at " + box + ", with one small job of one worker at a time (" +
             "doctor-...): running jobs go on.");
  check_box(*path, report);
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
    return complain("doctor", "--seconds = " + std::to_string(seconds) + " must be 1 to " +
                                  std::to_string(kSecondsMax));
  }
  const auto text = [&](const char* name) {
    return given.contains(name) ? given[name].as<std::string>() : std::string();
  };
  if (given.contains("to") && given.contains("config")) {
    return complain("doctor",
                    "--to and --config exclude each other: one asks from afar, one on the box");
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
    report.say("Loss and sums were not looked at: mend what failed first, and ask again.");
    return;
  }
  if (on(check_loss(path, report))) check_sums(path, report);
}

const Command kDoctor = {
    "doctor",
    "[--to BOX[:PORT]] [options] [--section.key=value ...]",
    "find out why nothing flows between workers and a box, and what to do",
    "Finds out why gradients do not flow, and says what to do about it. With --to, on a worker "
    "host:\nname, route, ports, MTU, loss and sums between here and the box, with one small job of "
    "its own\nthat leaves running jobs their share. Without, on the box: the machine and its "
    "configuration,\nthen the same with the pboxd that runs there, or with one that is started for "
    "the purpose.\nWith --output json checks as they come go to standard error.",
    doctor_options,
    doctor,
    Command::More::kSettings};

}  // namespace pboxctl
