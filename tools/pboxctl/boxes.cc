#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <boost/program_options.hpp>
#include <cstdio>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/limits.h"
#include "base/result.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {
namespace {

namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace options = boost::program_options;
using Json = nlohmann::json;

constexpr std::chrono::seconds kTimeout{5};

options::options_description boxes_options(const std::string& admin) {
  options::options_description description("Options");
  description.add_options()(
      "admin", options::value<std::string>()->default_value(admin)->value_name("HOST:PORT"),
      "admin server of any box of the cluster");
  description.add_options()("json", "print what the box answers");
  description.add_options()("help,h", "print this text");
  return description;
}

// The body of GET /api/v1/boxes.
pbox::Result<std::string> ask(const std::string& admin) {
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
  http::response<http::string_body> response;
  http::request<http::empty_body> request(http::verb::get, "/api/v1/boxes", 11);
  request.set(http::field::host, admin);
  beast::error_code error;
  const auto found = resolver.resolve(host, admin.substr(colon + 1), error);
  if (error) return failed(error.message());
  // With a time limit, which only the asynchronous calls have.
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
  if (response.result() != http::status::ok) return failed(response.body());
  return response.body();
}

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "-";
}

uint64_t number_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number_unsigned() ? found->get<uint64_t>() : 0;
}

std::string in_units(uint64_t amount, double unit, const char* name) {
  if (amount == 0) return "-";
  char text[48];
  std::snprintf(text, sizeof(text), "%.1f %s", static_cast<double>(amount) / unit, name);
  return text;
}

void print_boxes(const Json& page) {
  std::printf("%-24s %-7s %-24s %9s %14s %14s  %s\n", "BOX", "LEADER", "CONTROL", "PIPELINES",
              "CAPACITY", "JOB MEMORY", "VERSION");
  for (const Json& box : page.value("boxes", Json::array())) {
    std::printf("%-24s %-7s %-24s %9lu %14s %14s  %s\n", text_of(box, "name").c_str(),
                box.value("leads", false) ? "yes" : "", text_of(box, "control").c_str(),
                static_cast<unsigned long>(number_of(box, "pipelines")),
                in_units(number_of(box, "capacity_bytes_per_second"), 1e9, "GB/s").c_str(),
                in_units(number_of(box, "job_memory_bytes"), 1u << 30, "GiB").c_str(),
                text_of(box, "version").c_str());
  }
  const auto since = static_cast<std::time_t>(number_of(page, "leader_since_unix_seconds"));
  char when[32] = "";
  if (since != 0) std::strftime(when, sizeof(when), ", since %F %T", std::localtime(&since));
  std::printf("cluster %s, leader %s%s\n", text_of(page, "cluster").c_str(),
              text_of(page, "leader").c_str(), when);
  if (!page.value("store_up", false)) {
    std::printf("the cluster store is down, this is what was last heard: %s\n",
                text_of(page, "store_error").c_str());
  }
}

}  // namespace

int boxes(const Words& words) {
  const auto described = boxes_options("127.0.0.1:" + std::to_string(pbox::limits::kAdminPort));
  options::variables_map given;
  try {
    options::store(options::command_line_parser(words).options(described).run(), given);
  } catch (const options::error& error) {
    std::cerr << "pboxctl boxes: " << error.what() << "; --help lists all options\n";
    return kUsage;
  }
  if (given.contains("help")) {
    std::cout << "Usage: pboxctl boxes [options]\n\n"
                 "Lists the boxes of a cluster as one of them knows it, and which one leads.\n\n"
              << described;
    return kDone;
  }
  const auto body = ask(given["admin"].as<std::string>());
  if (!body) {
    std::cerr << "pboxctl: " << body.error().message << '\n';
    return kFailed;
  }
  constexpr bool kThrows = false;
  const Json page = Json::parse(*body, nullptr, kThrows);
  if (!page.is_object()) {
    std::cerr << "pboxctl: that is no answer of a box; is --admin a box's admin server?\n";
    return kFailed;
  }
  if (given.contains("json")) {
    std::cout << *body;
  } else {
    print_boxes(page);
  }
  return kDone;
}

}  // namespace pboxctl
