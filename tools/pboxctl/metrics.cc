#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>
#include <optional>
#include <sstream>

#include "base/version.h"
#include "nic/wire/control_versions.h"
#include "tools/pboxctl/admin_client.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

options::options_description metrics_options() {
  auto description = admin_options();
  description.add_options()("match",
                            options::value<std::string>()->default_value("")->value_name("TEXT"),
                            "show only metrics whose name contains this text");
  return description;
}

// Parses a line `name{label="value",...} number` of the text format. Returns nullopt if it has
// another form: the server is not a box.
std::optional<Json> sample_of(const std::string& line) {
  const size_t end_of_name = std::min(line.find_first_of("{ "), line.size());
  const auto is = [&line](size_t at, char character) {
    return at < line.size() && line[at] == character;
  };
  Json labels = Json::object();
  size_t at = end_of_name;
  if (is(at, '{')) {
    while (at < line.size() && !is(at, '}')) {
      const size_t equals = line.find('=', at);
      if (equals == std::string::npos) return std::nullopt;
      const std::string name = line.substr(at + 1, equals - at - 1);
      std::string value;
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        const bool is_escaped = line[at] == '\\' && at + 1 < line.size();
        if (is_escaped) ++at;
        value += is_escaped && line[at] == 'n' ? '\n' : line[at];
      }
      labels[name] = value;
      ++at;
    }
    ++at;
  }
  if (!is(at, ' ')) return std::nullopt;
  return Json{{"name", line.substr(0, end_of_name)},
              {"labels", std::move(labels)},
              {"value", line.substr(at + 1)}};
}

int metrics(const options::variables_map& given, const Words& /*more*/) {
  const bool as_json = wants_json(given);
  const auto text = ask(given, "/metrics");
  if (!text) {
    std::cerr << "pboxctl: " << text.error().message << '\n';
    return kFailed;
  }
  const auto& match = given["match"].as<std::string>();
  Json samples = Json::array();
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const bool is_comment = line.starts_with('#');
    const size_t begin = is_comment ? sizeof("# HELP ") - 1 : 0;
    if (line.size() <= begin) continue;
    const std::string name = line.substr(begin, line.find_first_of("{ ", begin) - begin);
    if (name.find(match) == std::string::npos) continue;
    if (!as_json) {
      std::cout << line << '\n';
    } else if (!is_comment) {
      auto sample = sample_of(line);
      if (!sample) {
        std::cerr << "pboxctl: the server at --admin is no box: '" << printable(line)
                  << "' is not a line of metrics\n";
        return kFailed;
      }
      samples.push_back(std::move(*sample));
    }
  }
  constexpr auto kMends = Json::error_handler_t::replace;
  if (as_json) std::cout << Json({{"samples", samples}}).dump(2, ' ', false, kMends) << '\n';
  return kDone;
}

options::options_description version_options() {
  options::options_description description("Options");
  description.add_options()("admin", options::value<std::string>()->value_name("HOST:PORT"),
                            "admin server of a box, to show the box's version too");
  add_keys_option(description);
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

int version(const options::variables_map& given, const Words& /*more*/) {
  const bool as_json = wants_json(given);
  Json page = {{"version", pbox::kVersion},
               {"control_protocol", pbox::wire::kControlProtocolVersion}};
  if (given.contains("admin")) {
    const auto health = fetch(given, "/healthz");
    if (!health) return kFailed;
    page["box"] = {{"name", text_of(*health, "name")}, {"version", text_of(*health, "version")}};
  }
  if (as_json) {
    std::cout << page.dump(2) << '\n';
    return kDone;
  }
  std::cout << "pboxctl " << pbox::kVersion << ", control protocol "
            << pbox::wire::kControlProtocolVersion << '\n';
  if (page.contains("box")) {
    std::cout << "box " << text_of(page["box"], "name") << ": pboxd "
              << text_of(page["box"], "version") << '\n';
  }
  return kDone;
}

}  // namespace

const Command kMetrics = {"metrics",
                          "[options]",
                          "show the metrics of a box",
                          "Shows the metrics of a box in the format of Prometheus; with --output "
                          "json, a list of samples.\n"
                          "The HELP lines and the documentation's page of metrics explain them.",
                          metrics_options,
                          metrics};

const Command kVersion = {"version",
                          "[options]",
                          "show the versions of this program and of a box",
                          "Shows the version of this program and, with --admin, the version of a "
                          "box. Both should be\nthe same release.",
                          version_options,
                          version};

}  // namespace pboxctl
