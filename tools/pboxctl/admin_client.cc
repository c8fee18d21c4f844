#include "tools/pboxctl/admin_client.h"

#include <unistd.h>

#include <boost/program_options.hpp>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string_view>

#include "base/limits.h"
#include "tools/pboxctl/http_connection.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;
using Json = nlohmann::json;

// Path of the box's UNIX socket under the packaged systemd unit.
constexpr char kPackagedSocket[] = "/run/pbox/admin.sock";

HttpServer server_of(const options::variables_map& given) {
  const auto& admin = given["admin"];
  HttpServer server{.where = admin.as<std::string>()};
  if (admin.defaulted() && access(kPackagedSocket, R_OK | W_OK) == 0) {
    server.where = std::string("unix:") + kPackagedSocket;
  }
  const char* keys = std::getenv("PBOX_KEYS");
  if (keys != nullptr) server.keys = keys;
  if (given.contains("keys")) server.keys = given["keys"].as<std::string>();
  return server;
}

// `fields`: header fields after the usual ones, and the body.
pbox::Result<std::string> send(const options::variables_map& given, const std::string& method,
                               const std::string& path, const std::string& fields) {
  const HttpServer server = server_of(given);
  const bool is_local = server.where.starts_with("unix:");
  const auto answer = send_request(server, method + " " + path + " HTTP/1.1\r\nHost: " +
                                               (is_local ? "localhost" : server.where) +
                                               "\r\nConnection: close\r\n" + fields);
  const auto failed = [&server](const std::string& what) {
    return pbox::Error{pbox::ErrorCode::kUnavailable, "--admin " + server.where + ": " + what};
  };
  if (!answer) return failed(answer.error().message);
  constexpr unsigned kOk = 200, kAccepted = 202;
  if (answer->status == kOk || answer->status == kAccepted) return answer->body;
  return failed(printable(answer->body.substr(0, answer->body.find_last_not_of('\n') + 1)));
}

}  // namespace

std::string in_path(const std::string& name) {
  std::string path;
  for (const char character : name) {
    const bool is_plain = std::isalnum(static_cast<unsigned char>(character)) != 0 ||
                          std::string_view("-._~").find(character) != std::string_view::npos;
    if (is_plain) {
      path += character;
      continue;
    }
    char encoded[4];
    std::snprintf(encoded, sizeof(encoded), "%%%02X", static_cast<unsigned char>(character));
    path += encoded;
  }
  return path;
}

pbox::Result<std::string> ask(const options::variables_map& given, const std::string& path) {
  return send(given, "GET", path, "\r\n");
}

pbox::Result<std::string> post(const options::variables_map& given, const std::string& path,
                               const std::string& json) {
  return send(given, "POST", path,
              "Content-Type: application/json\r\nContent-Length: " + std::to_string(json.size()) +
                  "\r\n\r\n" + json);
}

pbox::Result<Json> ask_json(const options::variables_map& given, const std::string& path) {
  const auto body = ask(given, path);
  if (!body) return body.error();
  constexpr bool kThrows = false;
  Json page = Json::parse(*body, nullptr, kThrows);
  if (page.is_object()) return page;
  return pbox::Error{
      pbox::ErrorCode::kUnavailable,
      "the answer does not come from a box; check that --admin is the admin server of a box"};
}

void add_admin_option(options::options_description& description) {
  const std::string admin = "127.0.0.1:" + std::to_string(pbox::limits::kAdminPort);
  description.add_options()(
      "admin", options::value<std::string>()->default_value(admin)->value_name("HOST:PORT"),
      "admin server of a box, or unix:PATH of its socket; by default /run/pbox/admin.sock if it "
      "exists");
  add_keys_option(description);
}

void add_keys_option(options::options_description& description) {
  description.add_options()(
      "keys", options::value<std::string>()->value_name("FOLDER"),
      "keys for a server with TLS; default: the environment variable PBOX_KEYS");
}

options::options_description admin_options() {
  options::options_description description("Options");
  add_admin_option(description);
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

std::optional<Json> fetch(const options::variables_map& given, const std::string& path) {
  auto page = ask_json(given, path);
  if (page) return std::move(*page);
  std::cerr << "pboxctl: " << page.error().message << '\n';
  return std::nullopt;
}

int show_page(const options::variables_map& given, const std::string& path,
              void (*print)(const Json& page)) {
  const bool as_json = wants_json(given);
  const auto page = fetch(given, path);
  if (!page) return kFailed;
  if (as_json) {
    std::cout << page->dump(2) << '\n';
  } else {
    print(*page);
  }
  return kDone;
}

std::string text_of(const Json& object, const char* key, const char* otherwise) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>())
                                                     : otherwise;
}

std::string printable(std::string text) {
  for (size_t at = 0; at < text.size(); ++at) {
    const auto byte = static_cast<unsigned char>(text[at]);
    const auto before = static_cast<unsigned char>(at > 0 ? text[at - 1] : 0);
    const bool is_c1 = before == 0xc2 && byte >= 0x80 && byte < 0xa0;  // U+0080 to U+009F
    if (is_c1) text[at - 1] = '?';
    if (is_c1 || byte < ' ' || byte == 0x7f) text[at] = '?';
  }
  return text;
}

double number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

Json list_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : Json::array();
}

std::string in_time(double seconds) {
  if (seconds <= 0) return "-";
  char text[48];
  if (seconds >= 1) {
    std::snprintf(text, sizeof(text), "%.1f s", seconds);
  } else if (seconds >= 1e-3) {
    std::snprintf(text, sizeof(text), "%.0f ms", seconds * 1e3);
  } else {
    std::snprintf(text, sizeof(text), "%.0f us", seconds * 1e6);
  }
  return text;
}

std::string in_units(double amount, double unit, const char* name) {
  if (amount == 0) return "-";
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f %s", amount / unit, name);
  return text;
}

}  // namespace pboxctl
