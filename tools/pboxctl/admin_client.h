// What pboxctl's commands ask a box's admin server, and how they print it.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {

// A name, as a path of the API has it.
std::string in_path(const std::string& name);

// The body of GET `path` at HOST:PORT. Errors say what to do. Blocks for at most five seconds.
pbox::Result<std::string> ask(const std::string& admin, const std::string& path);

// The same of a POST of JSON.
pbox::Result<std::string> post(const std::string& admin, const std::string& path,
                               const std::string& json);

// GET, as the object that it must be.
pbox::Result<nlohmann::json> ask_json(const std::string& admin, const std::string& path);

void add_admin_option(boost::program_options::options_description& description);

// --admin, --output and --help, which all commands that ask a box have.
boost::program_options::options_description admin_options();

// GET `path` of the box that --admin names. Nothing: it has been said on standard error why.
std::optional<nlohmann::json> fetch(const boost::program_options::variables_map& given,
                                    const std::string& path);

// A command of the kind "ask a box, print a page". `print`: the page for people.
int show_page(const boost::program_options::variables_map& given, const std::string& path,
              void (*print)(const nlohmann::json& page));

// Fields of an answer; what is missing or of another kind is "-" or 0.
std::string text_of(const nlohmann::json& object, const char* key);
double number_of(const nlohmann::json& object, const char* key);
// Empty if there is no such list.
nlohmann::json list_of(const nlohmann::json& object, const char* key);

// "3.2 s", "15 ms", "40 us"; "-" for 0.
std::string in_time(double seconds);
// "1.5 GiB"; "-" for 0.
std::string in_units(double amount, double unit, const char* name);

}  // namespace pboxctl
