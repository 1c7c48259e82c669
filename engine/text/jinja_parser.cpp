#include "engine/text/jinja_parser.h"

#include <algorithm>
#include <array>

#include "engine/text/jinja_parser_base.h"

namespace lockstep::text::jinja {

namespace {

using Type = Token::Type;
using Ends = std::vector<std::string_view>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Body run() {
    Body body = parse_body({});
    if (!unknown_.empty()) throw TemplateError("TemplateAssertionError", unknown_[0].message, unknown_[0].line);
    return body;
  }

 private:
  using StatementParser = void (Parser::*)(Body&, int line);

  struct Tag {
    std::string_view name;
    StatementParser parse;
  };

  static const Tag* find_tag(std::string_view name) {
    static constexpr std::array<Tag, 12> kTags = {{{"for", &Parser::parse_for},
                                                   {"if", &Parser::parse_if},
                                                   {"set", &Parser::parse_set},
                                                   {"macro", &Parser::parse_macro},
                                                   {"call", &Parser::parse_call_block},
                                                   {"filter", &Parser::parse_filter_block},
                                                   {"with", &Parser::parse_with},
                                                   {"print", &Parser::parse_print},
                                                   {"generation", &Parser::parse_generation},
                                                   {"block", &Parser::parse_block},
                                                   {"break", &Parser::parse_break},
                                                   {"continue", &Parser::parse_continue}}};
    const auto found = std::find_if(kTags.begin(), kTags.end(), [&](const Tag& tag) { return tag.name == name; });
    return found == kTags.end() ? nullptr : &*found;
  }

  template <class Node>
  static void add(Body& body, int line, Node node) {
    body.push_back(std::make_unique<Statement>(Statement{line, std::move(node)}));
  }

  /// Everything up to one of the tags `ends`, whose name is then the current token; without any, up to the end of the template.
  Body parse_body(const Ends& ends) {
    const Nesting nesting(*this);
    Body body;
    if (!ends.empty()) ends_.push_back(ends);
    while (current().type != Type::End) {
      const int line = current().line;
      if (current().type == Type::Data) {
        add(body, line, TextStatement{take().text});
      } else if (current().type == Type::VariableBegin) {
        take();
        ExpressionPtr expression = parse_tuple();
        expect(Type::VariableEnd);
        add(body, line, OutputStatement{std::move(expression)});
      } else {
        expect(Type::BlockBegin);
        if (current().type == Type::Name && std::find(ends.begin(), ends.end(), current().text) != ends.end()) break;
        parse_statement(body);
        expect(Type::BlockEnd);
      }
    }
    if (!ends.empty()) {
      if (current().type == Type::End) fail_nesting("Unexpected end of template.", {});
      ends_.pop_back();
    }
    return body;
  }

  /// The body of a statement: from the end of its tag to one of `ends`.
  Body parse_statement_body(const Ends& ends) {
    skip_operator(":");
    expect(Type::BlockEnd);
    return parse_body(ends);
  }

  Body parse_last_body(std::string_view end) {
    Body body = parse_statement_body({end});
    take();
    return body;
  }

  void parse_statement(Body& body) {
    if (current().type != Type::Name) fail("tag name expected");
    const Tag* tag = find_tag(current().text);
    if (!tag) fail_unknown_tag(current().text);
    tags_.push_back(current().text);
    const int line = take().line;
    (this->*tag->parse)(body, line);
    tags_.pop_back();
  }

  [[noreturn]] void fail_unknown_tag(const std::string& name) {
    static constexpr std::array<std::string_view, 5> kUnsupported = {"extends", "include", "import", "from", "autoescape"};
    if (std::find(kUnsupported.begin(), kUnsupported.end(), name) != kUnsupported.end()) {
      fail("the tag '" + name + "' is not supported in chat templates");
    }
    fail_nesting("Encountered unknown tag " + string_repr(name) + ".", name);
  }

  [[noreturn]] void fail_nesting(std::string message, std::string_view name) {
    const bool misplaced = !name.empty() && std::any_of(ends_.begin(), ends_.end(), [&](const Ends& ends) {
      return std::find(ends.begin(), ends.end(), name) != ends.end();
    });
    if (!ends_.empty()) {
      std::string expected;
      for (const std::string_view end : ends_.back()) expected += (expected.empty() ? "" : " or ") + string_repr(end);
      message += misplaced
                     ? " You probably made a nesting mistake. Jinja is expecting this tag, but currently looking for " + expected + "."
                     : " Jinja was looking for the following tags: " + expected + ".";
    }
    if (!tags_.empty()) message += " The innermost block that needs to be closed is " + string_repr(tags_.back()) + ".";
    fail(message);
  }

  void parse_for(Body& body, int line) {
    ForStatement loop;
    loop.target = parse_target("in");
    expect_name("in");
    loop.items = parse_tuple(false, "recursive");
    if (skip_name("if")) loop.condition = parse_expression();
    loop.recursive = skip_name("recursive");
    const std::size_t mark = unknown_.size();
    ++loops_;
    loop.body = parse_statement_body({"endfor", "else"});
    --loops_;
    if (take().text == "else") loop.otherwise = parse_last_body("endfor");
    make_unknown_sure(mark);
    add(body, line, std::move(loop));
  }

  void parse_if(Body& body, int line) {
    const std::size_t mark = unknown_.size();
    IfStatement choice;
    for (;;) {
      ExpressionPtr condition = parse_tuple(false);
      Body branch = parse_statement_body({"elif", "else", "endif"});
      choice.branches.emplace_back(std::move(condition), std::move(branch));
      const Token end = take();
      if (end.is_name("elif")) continue;
      if (end.is_name("else")) choice.otherwise = parse_last_body("endif");
      break;
    }
    forget_unknown_of_branch(mark);
    add(body, line, std::move(choice));
  }

  void parse_set(Body& body, int line) {
    ExpressionPtr target = parse_target({}, true);
    if (skip_operator("=")) {
      ExpressionPtr value = parse_tuple();
      return add(body, line, SetStatement{std::move(target), std::move(value)});
    }
    ExpressionPtr filter = parse_filters(nullptr);
    Body content = parse_last_body("endset");
    add(body, line, SetBlockStatement{std::move(target), std::move(filter), std::move(content)});
  }

  void parse_signature(MacroDefinition& macro) {
    expect_operator("(");
    while (!current().is_operator(")")) {
      if (!macro.parameters.empty()) expect_operator(",");
      macro.parameters.push_back(parse_target_name());
      if (skip_operator("=")) {
        macro.defaults.push_back(parse_expression());
      } else if (!macro.defaults.empty()) {
        fail("non-default argument follows default argument");
      }
    }
    expect_operator(")");
  }

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    const int outer_loops = std::exchange(loops_, 0);
    const std::size_t mark = unknown_.size();
    macros_.push_back(&macro);
    macro.body = parse_last_body(end);
    macros_.pop_back();
    make_unknown_sure(mark);
    loops_ = outer_loops;
  }

  void parse_macro(Body& body, int line) {
    MacroStatement statement;
    statement.macro.name = parse_target_name();
    parse_signature(statement.macro);
    parse_macro_body(statement.macro, "endmacro");
    add(body, line, std::move(statement));
  }

  void parse_call_block(Body& body, int line) {
    CallStatement statement;
    statement.caller.name = "caller";
    if (current().is_operator("(")) parse_signature(statement.caller);
    statement.call = parse_expression();
    if (!std::holds_alternative<CallNode>(statement.call->node)) fail("expected call", line);
    parse_macro_body(statement.caller, "endcall");
    add(body, line, std::move(statement));
  }

  void parse_filter_block(Body& body, int line) {
    FilterStatement statement;
    statement.filter = parse_filters(nullptr, true);
    statement.body = parse_last_body("endfilter");
    add(body, line, std::move(statement));
  }

  void parse_with(Body& body, int line) {
    WithStatement statement;
    while (current().type != Type::BlockEnd) {
      if (!statement.variables.empty()) expect_operator(",");
      ExpressionPtr target = parse_target();
      expect_operator("=");
      statement.variables.emplace_back(std::move(target), parse_expression());
    }
    statement.body = parse_last_body("endwith");
    add(body, line, std::move(statement));
  }

  void parse_print(Body& body, int line) {
    while (current().type != Type::BlockEnd) {
      add(body, line, OutputStatement{parse_expression()});
      if (!skip_operator(",")) break;
    }
  }

  void parse_generation(Body& body, int line) { add(body, line, GroupStatement{parse_last_body("endgeneration")}); }

  void parse_block(Body& body, int line) {
    const std::string name = expect(Type::Name).text;
    Body content = parse_last_body("endblock");
    skip_name(name);
    add(body, line, GroupStatement{std::move(content)});
  }

  void parse_break(Body& body, int line) {
    if (loops_ == 0) fail("'break' outside loop", line);
    add(body, line, BreakStatement{});
  }

  void parse_continue(Body& body, int line) {
    if (loops_ == 0) fail("'continue' not properly in loop", line);
    add(body, line, ContinueStatement{});
  }

  std::vector<Ends> ends_;         // of the open blocks
  std::vector<std::string> tags_;  // of the open statements
  int loops_ = 0;                  // that a `break` here could leave
};

}  // namespace

Body parse(Heap& heap, std::string_view source) { return Parser(heap, source).run(); }

}  // namespace lockstep::text::jinja
