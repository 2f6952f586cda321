"""Language models as the roles see them: calls out, replies or typed failures back (`calls`)."""
