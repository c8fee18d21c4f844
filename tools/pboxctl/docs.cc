// Generates the man page and the bash completion from the commands' own texts, for the build.
#include <algorithm>
#include <boost/program_options.hpp>
#include <iostream>

#include "base/version.h"
#include "tools/pboxctl/commands.h"

namespace pboxctl {
namespace {

namespace options = boost::program_options;

options::options_description docs_options() {
  options::options_description description("Options");
  description.add_options()("help,h", "print this text");
  return description;
}

// Escapes a text for troff: a minus stays a minus, and no line becomes a request by accident.
std::string troff(const std::string& text) {
  std::string out;
  for (const char character : text) {
    if (character == '-') {
      out += "\\-";
    } else if (character == '\\') {
      out += "\\e";
    } else if ((character == '\'' || character == '.') && (out.empty() || out.back() == '\n')) {
      out += std::string("\\&") + character;
    } else {
      out += character;
    }
  }
  return out;
}

std::vector<const options::option_description*> options_of(
    const options::options_description& description) {
  std::vector<const options::option_description*> list;
  for (const auto& option : description.options()) list.push_back(option.get());
  return list;
}

void print_man() {
  std::cout
      << ".TH PBOXCTL 1 \"\" \"pbox " << pbox::kVersion << "\" \"PBox\"\n"
      << ".SH NAME\npboxctl \\- inspects and operates PBox gradient\\-aggregation boxes\n"
      << ".SH SYNOPSIS\n.B pboxctl\n.I COMMAND\n[options]\n"
      << ".SH DESCRIPTION\nA box is a server that runs\n.BR pboxd (8)\nand sums the gradients "
         "of training jobs.\n.B pboxctl\nqueries running boxes, and checks machines that "
         "will become one.\n.SH COMMANDS\n";
  for (const Command* command : commands()) {
    std::cout << ".SS pboxctl " << command->name << ' ' << troff(command->arguments) << '\n'
              << troff(command->text) << '\n';
    const auto description = command->options();
    for (const auto* option : options_of(description)) {
      std::cout << ".TP\n.B " << troff(option->format_name());
      const std::string parameter = option->format_parameter();
      if (!parameter.empty()) std::cout << ' ' << troff(parameter);
      std::cout << '\n' << troff(option->description()) << '\n';
    }
  }
  std::cout
      << ".SH EXIT STATUS\n"
         ".TP\n.B 0\nsuccess\n"
         ".TP\n.B 1\nfailure: a check failed, a box does not answer, or there is no such job\n"
         ".TP\n.B 2\nwrong usage, or a configuration with mistakes\n"
         ".TP\n.B 3\na replay differs from its record, or from the record that it is "
         "compared with\n"
         ".SH SEE ALSO\n.BR pboxd (8)\n";
}

void print_completion() {
  std::cout << "# bash completion of pboxctl\n"
               "_pboxctl() {\n"
               "  local word=${COMP_WORDS[COMP_CWORD]} words=\n"
               "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
               "    words='--help --version";
  for (const Command* command : commands()) std::cout << ' ' << command->name;
  std::cout
      << "'\n"
         "  elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == --@(config|topology) ||\n"
         "    ${COMP_WORDS[1]}${COMP_WORDS[COMP_CWORD - 1]} == @(trace|recorder)@(-o|--output) "
         "||\n"
         "    ${COMP_WORDS[COMP_CWORD - 1]} == replay && $word != -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
         "    return\n"
         "  elif [[ ${COMP_WORDS[COMP_CWORD - 1]} == @(-o|--output) ]]; then\n"
         "    words='text json'\n"
         "  else\n"
         "    case ${COMP_WORDS[1]} in\n";
  for (const Command* command : commands()) {
    std::cout << "      " << command->name << ") words='";
    const auto description = command->options();
    const char* gap = "";
    for (const auto* option : options_of(description)) {
      std::cout << gap << "--" << option->long_name();
      gap = " ";
    }
    std::cout << "' ;;\n";
  }
  std::cout << "    esac\n"
               "  fi\n"
               "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
               "}\n"
               "complete -F _pboxctl pboxctl\n";
}

int docs(const options::variables_map& /*given*/, const Words& more) {
  if (more == Words{"man"}) {
    print_man();
  } else if (more == Words{"completion"}) {
    print_completion();
  } else {
    return complain("docs", "give man or completion as the argument");
  }
  return kDone;
}

}  // namespace

const Command kDocs = {"docs",
                       "man|completion",
                       "print the man page or the bash completion",
                       "Prints the man page or the bash completion.",
                       docs_options,
                       docs,
                       Command::More::kJob};

}  // namespace pboxctl
