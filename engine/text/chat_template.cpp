#include "engine/text/chat_template.h"

#include "engine/text/jinja_interpreter.h"
#include "engine/text/jinja_parser.h"

namespace lockstep::text {

namespace {

constexpr std::size_t kMaxSourceBytes = 4u << 20;

}  // namespace

struct ChatTemplate::Program {
  explicit Program(Limits render_limits) : limits(render_limits), constants(~std::size_t{0}, kMaxSourceBytes, ~std::size_t{0}) {}

  Limits limits;
  jinja::Heap constants;  // pays for the literals in `body`, which is bounded by the source
  jinja::Body body;
};

ChatTemplate::ChatTemplate(std::string_view source) : ChatTemplate(source, Limits{}) {}

ChatTemplate::ChatTemplate(std::string_view source, Limits limits) {
  if (source.size() > kMaxSourceBytes) {
    throw TemplateError("TemplateSyntaxError", "the template has " + std::to_string(source.size()) + " bytes, over the limit of " +
                                                   std::to_string(kMaxSourceBytes));
  }
  auto program = std::make_unique<Program>(limits);
  program->body = jinja::parse(program->constants, source);
  program_ = std::move(program);
}

ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& variables, std::int64_t now_unix) const {
  jinja::Interpreter interpreter(program_->limits, now_unix);
  return interpreter.render(program_->body, variables);
}

}  // namespace lockstep::text
