// Sends requests to a box's admin server and formats the answers, for the commands of pboxctl.
#pragma once

#include <boost/program_options/options_description.hpp>
#include <boost/program_options/variables_map.hpp>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {

// Returns `name` percent-encoded for a path of the API.
std::string in_path(const std::string& name);

// Returns the body of GET `path` of the box that --admin names, with the keys of --keys or
// PBOX_KEYS. Blocks for at most five seconds once the box's name is resolved. The error's message
// contains the remedy.
pbox::Result<std::string> ask(const boost::program_options::variables_map& given,
                              const std::string& path);

// Like `ask`, for a POST of JSON.
pbox::Result<std::string> post(const boost::program_options::variables_map& given,
                               const std::string& path, const std::string& json);

// Like `ask`, for an answer that must be a JSON object.
pbox::Result<nlohmann::json> ask_json(const boost::program_options::variables_map& given,
                                      const std::string& path);

// Adds --admin and --keys.
void add_admin_option(boost::program_options::options_description& description);
void add_keys_option(boost::program_options::options_description& description);

// Returns --admin, --keys, --output and --help, the options of every command that queries a box.
boost::program_options::options_description admin_options();

// Returns the answer to GET `path` of the box that --admin names. On failure prints the reason to
// standard error and returns nothing.
std::optional<nlohmann::json> fetch(const boost::program_options::variables_map& given,
                                    const std::string& path);

// Gets the page at `path` and prints it: as JSON if --output says so, else with `print`. Returns
// the exit status.
int show_page(const boost::program_options::variables_map& given, const std::string& path,
              void (*print)(const nlohmann::json& page));

// Returns the text with '?' for control characters. Names that workers choose could otherwise send
// commands to the operator's terminal.
std::string printable(std::string text);

// Return a field of an answer, a text as printable() makes it. A field that is missing or of
// another type is `otherwise` or 0.
std::string text_of(const nlohmann::json& object, const char* key, const char* otherwise = "-");
double number_of(const nlohmann::json& object, const char* key);
// Returns a field that is a list; an empty list if there is none.
nlohmann::json list_of(const nlohmann::json& object, const char* key);

// Formats a duration: "3.2 s", "15 ms", "40 us"; "-" for 0.
std::string in_time(double seconds);
// Formats an amount in a unit: "1.5 GiB"; "-" for 0.
std::string in_units(double amount, double unit, const char* name);

}  // namespace pboxctl
