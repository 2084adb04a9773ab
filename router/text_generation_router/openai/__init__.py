"""Routes in OpenAI's form: chat and text completions, models, and TGI's routes that take their bodies."""
