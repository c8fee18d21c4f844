#include "tools/pboxctl/admin_client.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/program_options.hpp>
#include <cctype>
#include <cstdio>
#include <iostream>
#include <string_view>

#include "base/limits.h"

namespace pboxctl {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace options = boost::program_options;
using Json = nlohmann::json;

constexpr std::chrono::seconds kTimeout{5};

using Request = http::request<http::string_body>;

pbox::Result<std::string> send(const std::string& admin, Request request) {
  const auto failed = [&admin](const std::string& what) {
    return pbox::Error{pbox::ErrorCode::kUnavailable,
                       "--admin " + admin + ": " + what +
                           "; give the HOST:PORT that a box names as admin= when it is ready"};
  };
  const size_t colon = admin.rfind(':');
  if (colon == std::string::npos) return failed("there is no port");
  std::string host = admin.substr(0, colon);
  if (host.size() > 2 && host.front() == '[') host = host.substr(1, host.size() - 2);
  boost::asio::io_context context;
  boost::asio::ip::tcp::resolver resolver(context);
  beast::tcp_stream stream(context);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> response;
  response.body_limit(boost::none);  // 256 ranks of 64 jobs exceed Beast's default of 1 MiB
  request.set(http::field::host, admin);
  beast::error_code error;
  const auto found = resolver.resolve(host, admin.substr(colon + 1), error);
  if (error) return failed(error.message());
  // Only the asynchronous calls have a time limit.
  stream.expires_after(kTimeout);
  const auto note = [&error](beast::error_code result, auto&&...) { error = result; };
  const auto run = [&] {
    context.restart();
    context.run();
    return !error;
  };
  stream.async_connect(found, note);
  if (!run()) return failed(error.message());
  http::async_write(stream, request, note);
  if (!run()) return failed(error.message());
  http::async_read(stream, buffer, response, note);
  if (!run()) return failed(error.message());
  const auto status = response.get().result();
  if (status == http::status::ok || status == http::status::accepted) return response.get().body();
  return failed(response.get().body());
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

pbox::Result<std::string> ask(const std::string& admin, const std::string& path) {
  return send(admin, Request(http::verb::get, path, 11));
}

pbox::Result<std::string> post(const std::string& admin, const std::string& path,
                               const std::string& json) {
  Request request(http::verb::post, path, 11);
  request.set(http::field::content_type, "application/json");
  request.body() = json;
  request.prepare_payload();
  return send(admin, std::move(request));
}

pbox::Result<Json> ask_json(const std::string& admin, const std::string& path) {
  const auto body = ask(admin, path);
  if (!body) return body.error();
  constexpr bool kThrows = false;
  Json page = Json::parse(*body, nullptr, kThrows);
  if (page.is_object()) return page;
  return pbox::Error{pbox::ErrorCode::kUnavailable,
                     "the answer is not a box's; is --admin the admin server of a box?"};
}

void add_admin_option(options::options_description& description) {
  const std::string admin = "127.0.0.1:" + std::to_string(pbox::limits::kAdminPort);
  description.add_options()(
      "admin", options::value<std::string>()->default_value(admin)->value_name("HOST:PORT"),
      "admin server of a box");
}

options::options_description admin_options() {
  options::options_description description("Options");
  add_admin_option(description);
  add_output_option(description);
  description.add_options()("help,h", "print this text");
  return description;
}

std::optional<Json> fetch(const options::variables_map& given, const std::string& path) {
  auto page = ask_json(given["admin"].as<std::string>(), path);
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

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "-";
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
